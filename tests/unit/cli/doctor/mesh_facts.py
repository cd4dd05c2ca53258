"""A mesh in which all is well, as facts; tests change what is to be wrong."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from google.protobuf.duration_pb2 import Duration

from pagemesh.cli.doctor.facts import Certificate, Examined, Facts, Fault, Gateway, Lead, Reading
from pagemesh.cli.doctor.findings import Finding, Result
from pagemesh.v1 import kvstore_pb2, process_pb2, types_pb2

KVSTORE = "127.0.0.1:7000"
ROUTER = "127.0.0.1:7100"
ADVICE = "give both the same model folder"


def duration(seconds: float) -> Duration:
    message = Duration()
    message.FromTimedelta(timedelta(seconds=seconds))
    return message


def digest(num_blocks: int = 3, fill: int = 1) -> kvstore_pb2.CacheDigest:
    return kvstore_pb2.CacheDigest(block_count=num_blocks, names_xor=bytes([fill]) * 16)


def info(worker_id: str = "decode-0", **fields: object) -> types_pb2.WorkerInfo:
    port = {"decode": 7200, "prefill": 7300}[worker_id.partition("-")[0]]
    port += int(worker_id.partition("-")[2])
    worker = types_pb2.WorkerInfo(
        worker_id=worker_id,
        epoch=5,
        role=types_pb2.WORKER_ROLE_DECODE
        if worker_id.startswith("decode")
        else types_pb2.WORKER_ROLE_PREFILL,
        address=f"127.0.0.1:{port}",
        model_name="demo",
        model_fingerprint="one",
        kv_layout=types_pb2.KvLayout(block_size=16, dtype="float32"),
        max_model_len=2048,
    )
    worker.MergeFrom(types_pb2.WorkerInfo(**fields))  # type: ignore[arg-type]
    return worker


def said(**fields: object) -> process_pb2.DescribeResponse:
    response = process_pb2.DescribeResponse(
        version="1.0", contract_digest="c", state=process_pb2.PROCESS_STATE_SERVING
    )
    response.host.boot_id = "boot"
    response.MergeFrom(process_pb2.DescribeResponse(**fields))  # type: ignore[arg-type]
    return response


def examined(
    label: str, address: str, *responses: process_pb2.DescribeResponse, offset: float = 0.0
) -> Examined:
    readings = [Reading(response, offset, 0.001) for response in responses]
    return Examined(address, (Lead(address, label, "the kvstore"),), readings, serves=True)


def silent(label: str, address: str, fault: Fault, left: float | None = None) -> Examined:
    return Examined(address, (Lead(address, label, "the kvstore", left),), fault=fault)


def worker(registered: types_pb2.WorkerInfo, *, offset: float = 0.0, **fields: object) -> Examined:
    described = process_pb2.WorkerDescription(
        worker=registered,
        kvstore_address=KVSTORE,
        membership=process_pb2.MEMBERSHIP_JOINED,
        held=digest(),
        shares_kv_memory=True,
    )
    described.MergeFrom(process_pb2.WorkerDescription(**fields))  # type: ignore[arg-type]
    response = said(worker=described)
    return examined(registered.worker_id, registered.address, response, response, offset=offset)


def kvstore(
    *registered: types_pb2.WorkerInfo, address: str = KVSTORE, **fields: object
) -> Examined:
    described = process_pb2.KvStoreDescription(
        index="memory",
        members=[
            process_pb2.MemberDescription(worker=each, publishes_here=True, believed=digest())
            for each in registered
        ],
    )
    described.MergeFrom(process_pb2.KvStoreDescription(**fields))  # type: ignore[arg-type]
    response = said(kvstore=described)
    return examined("kvstore", address, response, response)


def router(*registered: types_pb2.WorkerInfo, address: str = ROUTER, **fields: object) -> Examined:
    described = process_pb2.RouterDescription(
        kvstore_address=KVSTORE,
        is_following=True,
        models=[process_pb2.RouterModel(name="demo", canary=canary())],
        workers=[
            process_pb2.SeenWorker(
                worker=each,
                is_confirmed=True,
                session=process_pb2.SESSION_STATE_OPEN
                if each.role == types_pb2.WORKER_ROLE_DECODE
                else process_pb2.SESSION_STATE_UNSPECIFIED,
            )
            for each in registered
        ],
    )
    described.MergeFrom(process_pb2.RouterDescription(**fields))  # type: ignore[arg-type]
    return examined("router", address, said(router=described))


def canary(text: bytes = b"text", token: bytes = b"token") -> types_pb2.Canary:
    return types_pb2.Canary(version=1, text_digest=text, token_digest=token)


def gateway(**fields: object) -> Gateway:
    well = Gateway(
        "http://127.0.0.1:8000",
        answers=True,
        health_status=200,
        health={"models": [{"model": "demo"}]},
        ready_status=200,
        certificate=Certificate(seconds_left=90 * 24 * 3600.0),
    )
    return replace(well, **fields)  # type: ignore[arg-type]


WORKERS = (info("decode-0"), info("decode-1"), info("prefill-0"))


def facts(*processes: Examined, **fields: object) -> Facts:
    """Of these processes; of a whole mesh without any."""
    everybody = (router(*WORKERS), kvstore(*WORKERS), *map(worker, WORKERS))
    well = Facts(gateway(), processes or everybody, {}, "1.0", "c")
    return replace(well, **fields)  # type: ignore[arg-type]


def only(result: Result) -> Finding:
    """The single thing that a check found."""
    (finding,) = result.findings
    return finding


def brief(result: Result) -> list[tuple[str, str]]:
    """How bad it is, and about whom."""
    return [(finding.status.word, finding.subject) for finding in result.findings]
