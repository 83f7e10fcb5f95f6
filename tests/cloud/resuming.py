"""A training that is killed and started again, as a program: `python -m tests.cloud.resuming KILL_AT ARGUMENT ...`.

The arguments are those of scripts/train_tpu.py. Writes JSON: what each of both runs wrote to its standard output.
"""

import json
import signal
import subprocess
import sys

from tests.support import processes

__all__: list[str] = []


def _start(arguments: list[str]) -> subprocess.Popen[str]:
    script = str(processes.REPOSITORY / "scripts" / "train_tpu.py")
    return subprocess.Popen([sys.executable, script, *arguments], stdout=subprocess.PIPE, text=True)


def _killed(arguments: list[str], *, at: int) -> str:
    """Standard output until SIGKILL, which comes as soon as step `at` was reported."""
    seen = []
    with _start(arguments) as process:
        assert process.stdout is not None
        for line in process.stdout:
            seen.append(line)
            if json.loads(line).get("step", 0) >= at:
                process.send_signal(signal.SIGKILL)
                break
    assert process.returncode == -signal.SIGKILL, process.returncode
    return "".join(seen)


def _finished(arguments: list[str]) -> str:
    with _start(arguments) as process:
        out, _ = process.communicate()
    assert process.returncode == 0, process.returncode
    return out


def _main(kill_at: str, *arguments: str) -> None:
    given = list(arguments)
    print(json.dumps({"killed": _killed(given, at=int(kill_at)), "resumed": _finished(given)}))


if __name__ == "__main__":
    _main(*sys.argv[1:])
