"""Processes that are away, restart, or run out of something; certificates and keys."""

from __future__ import annotations

from typing import Final

from pagemesh.telemetry.metrics import admission, process
from pagemesh.telemetry.metrics import process as security
from pagemesh.telemetry.metrics.specs import Process
from tools.monitoring.alert import Alert
from tools.monitoring.query import COMPONENT
from tools.monitoring.recording import RULES

_COMPONENTS: Final = "|".join(each.value for each in Process)
_REFUSED: Final = f"sum by (component, instance, method) ({RULES.series(security.CALLS_REFUSED)}"

ALERTS: Final = [
    Alert(
        "PagemeshTargetDown",
        f'up{{{COMPONENT}=~"{_COMPONENTS}"}} == 0',
        "2m",
        "critical",
        "A process of the mesh cannot be scraped",
        "{{ $labels.component }} {{ $labels.instance }} has not answered for 2 minutes.",
        [
            "Look whether the process runs, and why it ended: its log, its events.",
            "If it runs, `pagemesh doctor` says whether it answers the others.",
            "If it does, look at the network between Prometheus and its metrics port, and at certificates.",
        ],
    ),
    Alert(
        "PagemeshProcessRestarts",
        f"changes({RULES.series(process.START_TIME)}[30m]) > 2",
        "0m",
        "warning",
        "A process is started again and again",
        "{{ $labels.component }} {{ $labels.instance }} was started {{ $value }} times within half an hour.",
        [
            "Read the end of its log from before the restart: a wrong setting, a missing model or GPU, or memory.",
            "Ask the container engine for the exit status: 137 is mostly memory.",
        ],
        [process.START_TIME],
    ),
    Alert(
        "PagemeshFilesRunOut",
        f"{RULES.series(process.OPEN_FDS)} / {RULES.series(process.MAX_FDS)} > 0.8",
        "10m",
        "warning",
        "A process has almost as many files open as it may",
        "{{ $labels.component }} {{ $labels.instance }} has {{ $value | humanizePercentage }} of its files open.",
        [
            "Raise the limit (`ulimit -n`, LimitNOFILE): at the limit no connection is taken any more.",
            "If the number grows without more clients, that is a fault: report it.",
        ],
        [process.OPEN_FDS, process.MAX_FDS],
    ),
    Alert(
        "PagemeshCertificateExpires",
        f"{RULES.series(security.CERTIFICATE_EXPIRY)} - time() < 6 * 3600",
        "10m",
        "critical",
        "A certificate between the processes expires",
        "The certificate of {{ $labels.component }} {{ $labels.instance }} expires in "
        "{{ $value | humanizeDuration }}.",
        [
            "Look why nobody renews it: cert-manager's log, or whoever issues it.",
            "Replace the file by a rename; it is used at once, and open connections live on.",
            "An expired certificate is refused by all others: the process is then out of the mesh.",
        ],
        [security.CERTIFICATE_EXPIRY],
    ),
    Alert(
        "PagemeshCallsRefused",
        # A series that begins at 1 has not grown: what was not there before counts, too.
        f"{_REFUSED}) - ({_REFUSED} offset 15m) or 0 * {_REFUSED})) > 0",
        "0m",
        "warning",
        "A process was called by somebody who may not",
        "{{ $labels.component }} {{ $labels.instance }} refused {{ $value }} calls of {{ $labels.method }} within "
        "15 minutes.",
        [
            "The log (`call_refused`) names who called. A part of the mesh with the wrong DNS names in its "
            "certificate: issue it anew.",
            "Anybody else with a certificate of the mesh's authority is an intruder.",
        ],
        [security.CALLS_REFUSED],
    ),
    Alert(
        "PagemeshKeyFileRefused",
        f"increase({RULES.series(admission.KEY_FILE_READS, outcome='refused')}[15m]) > 0",
        "0m",
        "warning",
        "A router cannot use the key file",
        "{{ $labels.instance }} refused the key file; the keys from before hold.",
        [
            "The router's log says what is wrong with the file, by line or by the tenant's name. Correct it."
        ],
        [admission.KEY_FILE_READS],
    ),
]
