"""`pagemesh doctor` looks at real meshes of which something is really broken."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from pagemesh.identity.roles import MeshRole
from tests.mesh.altered_worker import (
    DEMO,
    FAST_CLOCK,
    FORGETFUL,
    NOTHING,
    OLD_VERSION,
    altered_worker,
)
from tests.mesh.harness import Mesh, option, running_mesh, until
from tests.mesh.odd_worker import make_odd_demo, running_odd_worker
from tests.support.certificates import make_certificate
from tests.support.mesh_certificates import MeshAuthority
from tests.support.ports import free_port

pytestmark = pytest.mark.costly

TIMEOUT_S = 5.0
START_S = 5.0
"""What a Python process may take on busy cores before it does anything."""


class Diagnosis(NamedTuple):
    """What the command came to."""

    exit_code: int
    told: dict[str, Any]
    seconds: float

    def findings(self, check: str) -> dict[str, dict[str, str]]:
        """What a check found, by whom it is about."""
        (found,) = [each for each in self.told["checks"] if each["name"] == check]
        return {finding["subject"]: finding for finding in found["findings"]}


def doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The real command; it never shows a traceback."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pagemesh.cli", "doctor", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )
    assert "Traceback" not in done.stdout + done.stderr
    return done


def diagnose(mesh: Mesh, *arguments: str) -> Diagnosis:
    began_at = time.monotonic()
    done = doctor("--url", mesh.url, "--json", *arguments)
    seconds = time.monotonic() - began_at
    assert done.stderr == ""
    return Diagnosis(done.returncode, json.loads(done.stdout), seconds)


def diagnose_until_told(mesh: Mesh, check: str, *subjects: str) -> Diagnosis:
    """The first diagnosis in which a check names all of these."""
    found: list[Diagnosis] = []

    def is_told() -> bool:
        found[:] = [diagnose(mesh)]
        return set(subjects) <= set(found[0].findings(check))

    try:
        until(is_told, f"{check} names {', '.join(subjects)}", 60)
    except AssertionError:
        print(json.dumps([each.told for each in found], indent=1))
        raise
    return found[0]


@pytest.fixture(scope="module")
def examined(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    arguments = ["--model", str(DEMO), "--no-sample", "--decode", "2"]
    with running_mesh(tmp_path_factory.mktemp("examined"), *arguments) as running:
        yield running


@pytest.fixture
def well(examined: Mesh) -> Mesh:
    """It is well again, whatever the test before did; who left it on purpose may be missed for a while."""
    until(lambda: diagnose(examined).exit_code == 0, "the mesh is well again", 60)
    return examined


@contextmanager
def frozen(*processes: psutil.Process) -> Iterator[None]:
    with ExitStack() as stack:
        for process in processes:
            process.send_signal(signal.SIGSTOP)
            stack.callback(process.send_signal, signal.SIGCONT)
        yield


def test_a_mesh_in_which_all_is_well_is_told_so(examined: Mesh) -> None:
    done = doctor(examined.url)
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith("\nAll is well.\n")
    found = diagnose(examined)
    assert found.told["status"] == "ok"
    names = {each["name"] for each in found.told["processes"] if each["answers"]}
    assert names == {"router", "kvstore", "prefill-0", "decode-0", "decode-1"}
    assert {each["status"] for each in found.told["checks"]} == {"ok", "skipped"}


def test_a_mesh_is_found_by_its_kvstore_alone(well: Mesh) -> None:
    kvstore = option(well.parts()["prefill-0"], "--kvstore")
    assert kvstore is not None
    done = doctor("--kvstore", kvstore, "--json")
    assert done.returncode == 0, done.stdout
    names = {each["name"] for each in json.loads(done.stdout)["processes"]}
    assert names == {"router", "kvstore", "prefill-0", "decode-0", "decode-1"}


def test_a_frozen_worker_is_named_even_when_the_mesh_has_dropped_it(well: Mesh) -> None:
    with frozen(well.parts()["decode-1"]):
        at_once = diagnose(well)
        until(lambda: well.health().get("decode_workers") == 1, "the mesh has dropped decode-1")
        later = diagnose(well)
    for found in (at_once, later):
        assert found.exit_code == 1
        assert "answers nothing" in found.findings("processes")["decode-1"]["what"]
        assert found.seconds < TIMEOUT_S + START_S
    assert "the kvstore dropped it" in later.findings("processes")["decode-1"]["what"]


def test_a_mesh_half_of_which_is_frozen_is_examined_in_time(well: Mesh) -> None:
    parts = well.parts()
    with frozen(parts["router"], parts["decode-0"]):
        found = diagnose(well)
    assert found.exit_code == 1
    assert found.seconds < TIMEOUT_S + START_S
    assert set(found.findings("processes")) == {"router", "decode-0"}
    assert "no router behind it does" in found.findings("gateway")["gateway"]["what"]


def test_a_kvstore_that_was_killed_is_named_with_what_it_leads_to(well: Mesh) -> None:
    supervisor = psutil.Process(well.process.pid)
    # It would start the kvstore again, in less time than the command takes to start.
    with frozen(supervisor):
        well.parts()["kvstore"].kill()
        told = ("router", "decode-0, decode-1 and prefill-0")
        found = diagnose_until_told(well, "membership", *told)
    assert found.exit_code == 1
    assert "nobody listens there" in found.findings("processes")["kvstore"]["what"]
    assert "by what it heard last" in found.findings("membership")["router"]["what"]


@pytest.mark.exhaustive
def test_a_worker_with_another_tokenizer_is_the_odd_one(well: Mesh, tmp_path: Path) -> None:
    make_odd_demo(tmp_path / "odd")
    with running_odd_worker(well, tmp_path / "odd", "demo"):
        found = diagnose_until_told(well, "parity", "decode-odd")
    assert found.exit_code == 1
    odd = found.findings("parity")["decode-odd"]
    assert set(found.findings("parity")) == {"decode-odd"}
    assert "at the step 'tokenizer'" in odd["what"]
    assert "the same tokenizer.json" in odd["advice"]


def test_a_worker_of_another_model_is_named_though_the_kvstore_refused_it(well: Mesh) -> None:
    with altered_worker(well, "decode-half", NOTHING, "--dtype", "bfloat16"):
        found = diagnose(well)
    assert found.exit_code == 1
    assert set(found.findings("models")) == {"decode-half"}
    assert "does not let it into the mesh" in found.findings("models")["decode-half"]["what"]
    assert "--dtype" in found.findings("models")["decode-half"]["advice"]


@pytest.mark.exhaustive
def test_two_workers_of_one_name_are_told_with_their_addresses(well: Mesh) -> None:
    with altered_worker(well, "decode-1", NOTHING) as twin:
        first = option(well.parts()["decode-1"], "--port")
        found = diagnose_until_told(well, "membership", "decode-1")
    assert found.exit_code == 1
    what = found.findings("membership")["decode-1"]["what"]
    assert twin.address in what
    assert f"127.0.0.1:{first}" in what


@pytest.mark.exhaustive
def test_an_address_that_leads_elsewhere_is_found_by_who_has_to_use_it(well: Mesh) -> None:
    elsewhere = f"127.0.0.1:{option(well.parts()['decode-0'], '--port')}"
    with altered_worker(well, "decode-far", NOTHING, "--advertise", elsewhere):
        found = diagnose(well)
    assert found.exit_code == 1
    what = found.findings("links")["decode-far"]["what"]
    assert f"cannot reach it at {elsewhere}" in what
    assert "decode-0 answers there" in what


@pytest.mark.exhaustive
def test_a_worker_of_another_version_is_the_odd_one(well: Mesh) -> None:
    with altered_worker(well, "decode-old", OLD_VERSION):
        found = diagnose(well)
    assert found.exit_code == 1
    assert set(found.findings("versions")) == {"decode-old"}
    assert "pagemesh 0.0.1" in found.findings("versions")["decode-old"]["what"]


@pytest.mark.exhaustive
def test_a_clock_that_is_ahead_is_told_with_its_seconds(well: Mesh) -> None:
    with altered_worker(well, "decode-early", FAST_CLOCK):
        found = diagnose(well)
    assert found.exit_code == 0
    assert set(found.findings("clocks")) == {"decode-early"}
    assert "5.0 s ahead" in found.findings("clocks")["decode-early"]["what"]


@pytest.mark.exhaustive
def test_an_index_that_does_not_know_what_a_worker_holds_is_told(well: Mesh) -> None:
    with altered_worker(well, "decode-forgetful", FORGETFUL) as worker:
        until(lambda: ask(well) and worker.num_generated() > 0, "it has generated something", 60)
        found = diagnose_until_told(well, "index", "decode-forgetful")
    assert found.exit_code == 1
    assert set(found.findings("index")) == {"decode-forgetful"}


def ask(mesh: Mesh) -> bool:
    """A prompt that nobody has seen, long enough to fill some blocks."""
    prompt = [10 + int(number) for number in os.urandom(64)]
    mesh.client().completions.create(model="demo", prompt=prompt, max_tokens=2)
    return True


def test_where_no_mesh_is_one_sentence_says_so() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    done = doctor(url)
    assert done.returncode == 2
    assert f"gateway: Asked at {url}: nobody listens there." in done.stdout
    kvstore = doctor("--kvstore", f"127.0.0.1:{free_port()}")
    assert kvstore.returncode == 2
    assert "nobody listens there" in kvstore.stdout


@pytest.mark.exhaustive
def test_a_mesh_that_asks_for_keys_is_examined_with_one(tmp_path: Path) -> None:
    arguments = ["--model", str(DEMO), "--no-sample", "--prefill", "0", "--api-key", "secret"]
    with running_mesh(tmp_path, *arguments) as locked:
        refused = doctor(locked.url)
        assert refused.returncode == 2
        assert "It asks for an API key" in refused.stdout
        allowed = doctor(locked.url, PAGEMESH_API_KEY="secret")
        assert allowed.returncode == 0, allowed.stdout


@pytest.mark.exhaustive
def test_a_mesh_with_tls_is_examined_through_it(tmp_path: Path) -> None:
    authority = make_certificate(tmp_path, "authority")
    server = make_certificate(tmp_path, "server", authority)
    arguments = ["--model", str(DEMO), "--no-sample", "--prefill", "0"]
    arguments += ["--ssl-certfile", str(server.certificate), "--ssl-keyfile", str(server.key)]
    with running_mesh(tmp_path, *arguments) as encrypted:
        url = f"https://{encrypted.address}"
        known = doctor(url, "--ca-cert", str(authority.certificate))
        unknown = doctor(url)
    assert known.returncode == 0, known.stdout
    assert "gateway: Its certificate expires in 2.0 days" in known.stdout
    assert "router, kvstore and decode-0 answer and serve" in known.stdout
    assert unknown.returncode == 1
    assert "gateway: Its certificate is not to be trusted" in unknown.stdout


def test_a_mesh_that_speaks_tls_inside_is_examined_with_a_certificate(tmp_path: Path) -> None:
    arguments = ["--model", str(DEMO), "--no-sample", "--tls"]
    with running_mesh(tmp_path, *arguments) as inner:
        parts = inner.parts()
        router = f"router at 127.0.0.1:{option(parts['router'], '--port')}"
        shown = option(parts["decode-0"], "--mesh-cert")
        assert shown is not None
        own = [str(Path(shown).with_name(f"supervisor.{kind}")) for kind in ("crt", "key", "ca")]
        other = MeshAuthority(tmp_path / "other").issue("forged", MeshRole.HEALTH)
        assert other.mesh_cert is not None
        assert other.mesh_key is not None
        allowed = doctor(inner.url, *mesh_flags(*own))
        # It trusts the mesh; nobody there trusts it.
        forged = doctor(inner.url, "--json", *mesh_flags(other.mesh_cert, other.mesh_key, own[2]))
        bare = doctor(inner.url)
    assert allowed.returncode == 0, allowed.stdout
    assert "router, kvstore, decode-0 and prefill-0 answer and serve" in allowed.stdout
    assert "ok       certificates" in allowed.stdout
    assert "2 ways between workers tried" in allowed.stdout
    assert forged.returncode == bare.returncode == 1
    told = {each["name"]: each["fault"] for each in json.loads(forged.stdout)["processes"]}
    # Through the gateway, which has a certificate that the router knows.
    assert told.pop(f"router at {inner.url}") is None
    assert told == dict.fromkeys((router, "kvstore", "decode-0", "prefill-0"), "stranger")
    assert "pagemesh doctor: A router answers through the gateway" in bare.stdout
    assert "--mesh-cert" in bare.stdout


def mesh_flags(certificate: str, key: str, authorities: str) -> list[str]:
    return ["--mesh-cert", certificate, "--mesh-key", key, "--mesh-ca", authorities]
