"""The JSON file of each rate, with the fields that vLLM's files have."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from pagemesh.bench.load import Run
from pagemesh.bench.metrics import as_fields
from pagemesh.bench.report import RateResult
from pagemesh.bench.settings import BenchServeConfig
from pagemesh.errors import ConfigError
from pagemesh.workload.files import require_writable, write_text


class ResultFiles:
    """Writes one file for each rate, where --save-result asks for it."""

    def __init__(self, config: BenchServeConfig, model: str, tokenizer: str) -> None:
        """Raises ConfigError when a file could not be written: before anything is measured."""
        self._config = config
        self._model = model
        self._tokenizer = tokenizer
        self._date = datetime.now().strftime("%Y%m%d-%H%M%S")
        if config.results.save_result:
            folder = config.results.result_dir
            if folder is not None:
                _make(folder)
            path = self._path(config.traffic.request_rate[0])
            is_new = not path.exists()
            require_writable("--result-dir" if folder else "--result-filename", str(path))
            if is_new:
                path.unlink()

    def write(self, result: RateResult, run: Run) -> Path | None:
        """Write the file of one rate, and say which; None without --save-result."""
        if not self._config.results.save_result:
            return None
        path = self._path(result.rate)
        text = json.dumps(self._fields(result, run), indent=2) + "\n"
        write_text("--save-result", str(path), text)
        return path

    def _path(self, rate: float) -> Path:
        results, limit = self._config.results, self._config.traffic.max_concurrency
        concurrency = "" if limit is None else f"-concurrency{limit}"
        base = self._model.rsplit("/", 1)[-1]
        name = f"{self._config.endpoint.backend}-{rate}qps{concurrency}-{base}-{self._date}.json"
        return Path(results.result_dir or ".") / (results.result_filename or name)

    def _fields(self, result: RateResult, run: Run) -> dict[str, Any]:
        config = self._config
        fields = {
            "date": self._date,
            "endpoint_type": config.endpoint.backend,
            "backend": config.endpoint.backend,
            "model_id": self._model,
            "tokenizer_id": self._tokenizer,
            "num_prompts": len(run.records),
            "request_rate": "inf" if result.rate == math.inf else result.rate,
            "burstiness": config.traffic.burstiness,
            "max_concurrency": config.traffic.max_concurrency,
            **dict(_pair(text) for text in config.results.metadata),
            **as_fields(result.metrics),
            "stopped": result.is_stopped,
            "first_error": result.first_error,
        }
        return fields | _details(run) if config.results.save_detailed else fields


def first_error(run: Run) -> str:
    """Of the first request that failed; empty if none did."""
    failed = [record for record in run.records if record.error]
    return min(failed, key=lambda record: record.end).error if failed else ""


def _details(run: Run) -> dict[str, Sequence[Any]]:
    records = run.records
    return {
        "input_lens": [record.num_prompt_tokens for record in records],
        "output_lens": [record.num_output_tokens if record.is_good else 0 for record in records],
        "start_times": [record.begin - run.begin for record in records],
        "queue_times": [record.queue_time for record in records],
        "ttfts": [record.ttft for record in records],
        "itls": [record.itls for record in records],
        "latencies": [record.e2el if record.is_over else 0.0 for record in records],
        "generated_texts": [record.text for record in records],
        "errors": [record.error for record in records],
    }


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name.strip(), value.strip()


def _make(folder: str) -> None:
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--result-dir is {folder!r}: {error.strerror}") from error
