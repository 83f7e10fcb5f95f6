"""The command line: its options, its errors in two lines, and what happens when it is stopped in the middle."""

import errno
import functools
import itertools
import json
import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import pytest

import tfrecord_io
from pipelines.cli import commands
from pipelines.prepare.options.addresses import ADDRESS
from tests import building
from tests.building import REVIEWS, Outcome, reviews
from tests.support import limits, processes, seams
from tests.support.tokenizers_zoo import Zoo
from tfrecord_io import manifest
from tfrecord_io.errors import OutputError, SourceError

# The words of a text: `flags("--a --b")`.
flags = str.split
REQUEST = flags("""
-o --answers-column --append --bucket-lengths --chat-date --chat-option --chat-template --chosen-column
--completion-column --compression --config --data-files --decontaminate --decontaminate-words --dedup
--dedup-across-splits --engine --filter --fim-rate --fim-spm-rate --fim-tokens --format --help-all --hold-out
--hold-out-by --input-prefix --keep-column --label-all-tokens --label-classes --label-column --layout --learn
--learn-not --learn-whole-turns --limit --long-documents --map --max-error-rate --max-length --messages-column
--most-documents --name --no-shuffle --num-proc --options --output --overwrite --pack-rows --padding-side
--prompt-column --rejected-column --remainder --resume --revision --sample-by --seed --segments --shard-size
--shuffle --source-option --special-tokens --split --stride --system-column --tags-column --target-column
--target-length --text-column --tokenizer --tokenizer-revision --tools-column --truncation --truncation-side
--words-column --workers
""")
# Of every command.
MESSAGES = ["--json", "--quiet", "--verbose", "-q", "-v"]
PROGRESS = {"build", "export", "plan", "tokenizer", "verify"}
CONSENT = ["--filter", "--map", "--run-stored-functions", "--source"]
OPTIONS = {
    "build": REQUEST,
    "doctor": flags("--global-batch-size --hosts --output --region --replicas --tpu -o"),
    "export": flags("--add --documents --drop --join-prompts --output --push --rename --split --to --workers -o"),
    "inspect": ["--rows", "--split"],
    "plan": REQUEST,
    "report": ["--output", "-o"],
    "tokenizer": flags(
        "--chat-template --config --data-files --filter --format --kind --limit "
        "--lowercase --map --max-length --min-frequency --no-lowercase --num-proc --output --revision "
        "--sample --sample-by --source-option --special-token --split --style --text-column --vocab-size --workers -o"
    ),
    "trace": [*flags("--record --shard --split"), *CONSENT],
    "verify": ["--repair", *CONSENT],
}


def build(output: object, dataset: object = REVIEWS, **changes: object) -> Outcome:
    return building.command("build", dataset, *building.options(output, **changes))


def run(arguments: list[str], **changes: Any) -> Outcome:
    ended = processes.run(arguments, **changes)
    return Outcome(status=ended.returncode, out=ended.stdout, err=ended.stderr)


def words(*arguments: object) -> str:
    return shlex.join(building.program(*arguments))


@pytest.mark.slow
@pytest.mark.parametrize(("closed", "is_error"), [("2", True), ("1", False)])
def test_a_closed_output_changes_no_status(tmp_path: Path, closed: str, is_error: bool) -> None:
    ended = run(["sh", "-c", f"{words('inspect', tmp_path if is_error else reviews(), '--rows', 0)} {closed}>&-"])
    assert (ended.status, "Traceback" in ended.err) == (int(is_error), False)


@pytest.mark.slow
def test_a_build_whose_output_nobody_reads_ends_well(tmp_path: Path) -> None:
    build_words = words("build", REVIEWS, "--json", *building.options(tmp_path / "out"))
    ended = run(["bash", "-c", f"set -o pipefail; {build_words} 2>&1 | true"])
    assert ended.status == 0, ended.err
    assert (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.slow
def test_characters_that_the_outputs_encoding_lacks_are_replaced(tmp_path: Path) -> None:
    rows = building.source(tmp_path / "source", train=[{"text": "größer"}])
    assert build(tmp_path / "out", rows).status == 0
    traced = building.program("trace", tmp_path / "out", "--split", "train", "--shard", 0, "--record", 0)
    ended = run(["env", "PYTHONIOENCODING=ascii", *traced])
    assert (ended.status, "text: gr??er" in ended.out) == (0, True), ended.err


def test_a_misspelt_column_is_said_while_a_tokenizer_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    seams.put(monkeypatch, resolve_tokenizer=lambda config, **_: over.wait(limits.ANSWER))
    cause, remedy = build(tmp_path / "out", text_column="txt").error
    over.set()
    assert cause == "split 'train' has no column 'txt'"
    assert remedy.startswith("did you mean 'text'? choose among")


@pytest.mark.parametrize(
    ("make", "name", "cause", "remedy"),
    [
        ((), "empty", "the folder holds nothing, expected tokenizer.json", "save_pretrained"),
        (("notes.txt",), "empty", "the folder holds notes.txt, expected tokenizer.json", "save_pretrained"),
        (("tokenizer.json",), "empty/tokenizer.json", "is a file, expected a folder", "give its folder, "),
        ((), "nowhere/", "no such folder", "check the path"),
        (("tokenizer.json",), "emptty", "no such folder", "did you mean "),
    ],
)
def test_a_tokenizer_that_is_no_folder_of_one_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: tuple[str, ...], name: str, cause: str, remedy: str
) -> None:
    seams.put(monkeypatch, resolve_tokenizer=lambda config, **_: pytest.fail("before anything is loaded"))
    (tmp_path / "empty").mkdir()
    for file in make:
        (tmp_path / "empty" / file).touch()
    error = build(tmp_path / "out", tokenizer=f"{tmp_path}/{name}").error
    assert cause in error[0]
    assert remedy in error[1]


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_a_dataset_may_be_named_by_its_manifest(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    by_folder, by_manifest = (building.command(command, place) for place in (reviews(), reviews() / "manifest.json"))
    assert by_folder.status == by_manifest.status == 0
    assert by_manifest.out == by_folder.out
    monkeypatch.chdir(reviews())
    assert building.command(command, "manifest.json").out == by_folder.out


@pytest.mark.parametrize("name", ["stanfordnlp/imdb", "new", "."])
def test_doctor_accepts_finished_datasets_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    cause, remedy = building.command("doctor", name).error
    assert cause == f"{name}: not the folder of a finished dataset (doctor does not look for datasets on the Hub)"
    assert f"give --output {name}; " in remedy


@pytest.mark.slow
def test_doctor_looks_at_a_local_dataset_as_a_tpu_vm_would() -> None:
    checked = building.command("doctor", reviews(), "--global-batch-size", 32)
    assert checked.status == 0, checked.err
    assert checked.out == building.command("doctor", reviews(), "--global-batch-size", 32, "--tpu", "vm").out


@pytest.mark.engines
def test_which_engine_serves_is_said_and_why_it_is_slow(tmp_path: Path, zoo: Zoo) -> None:
    """Another release of `tokenizers`, or a missing package, would silently be ten times slower."""
    fast = building.command("plan", REVIEWS, "--tokenizer", building.tokenizer())
    assert "tokenized with the engine wordpiece" in fast.out
    assert "no fast engine" not in fast.err
    slow = build(tmp_path / "slow", tokenizer=zoo.path("slow_byt5"))
    assert "warning: no fast engine can make these rows" in slow.err
    assert all(f"{engine}: " in slow.err for engine in ("wordpiece", "unigram", "fastokens", "gigatoken"))
    named = build(tmp_path / "named", engine="hf")
    assert "tokenized with the engine hf" in named.err
    assert "no fast engine" not in named.err, "it was asked for"


def test_a_release_that_no_engine_was_compared_with_is_said_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "0.99.0" if name == "tokenizers" else version(name))
    outcome = building.command("plan", REVIEWS, "--tokenizer", building.tokenizer())
    assert outcome.status == 0, outcome.err
    (line,) = (line for line in outcome.err.splitlines() if line.startswith("warning: no fast engine"))
    assert "tokenizers 0.99.0" in line
    assert "pip install" in line


class TestOptions:
    """What can be typed, frozen: a change here is a change for everybody who has typed it."""

    def test_the_commands_and_their_options_are_these(self) -> None:
        spellings = {}
        for name, command in commands.main.commands.items():
            options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
            spellings[name] = sorted(itertools.chain(*([*option.opts, *option.secondary_opts] for option in options)))
        progress = {name: ["--no-progress"] * (name in PROGRESS) for name in OPTIONS}
        assert spellings == {name: sorted([*words, *MESSAGES, *progress[name]]) for name, words in OPTIONS.items()}

    def test_defaults_are_these(self) -> None:
        parameters = commands.main.commands["build"].make_context("build", ["x", "--tokenizer=t", "--output=o"]).params
        nonempty = {name: value for name, value in parameters.items() if value and value not in (("x",), "t", "o")}
        defaults = {"decontaminate_words": 13, "long_documents": "split", "fim_spm_rate": 0.5, "layout": "pad"}
        defaults |= {"truncation": "longest_first", "remainder": "pad", "special_tokens": "eos", "shard_size": "100MB"}
        assert nonempty == {**defaults, "compression": "none", "shuffle": True, "engine": "auto", "resume": True}

    def test_a_line_of_build_becomes_a_plan_by_one_word(self, tmp_path: Path) -> None:
        line = (REVIEWS, *building.options(tmp_path / "out", split="validation", num_proc=1, overwrite=True))
        more = ("--limit", 10**30, "--json")  # more than there are rows
        beam = ("--", "--runner=DataflowRunner", "--region=us-central1")
        planned = building.command("plan", *line, *more, *beam)
        assert planned.status == 0, planned.err
        assert json.loads(planned.out)[0]["rows"] == 80
        assert os.listdir(tmp_path) == []

    @pytest.mark.parametrize("command", ["build", "plan"])
    def test_help_fits_a_screen_and_names_its_longer_form(self, command: str) -> None:
        short, whole = (building.command(command, flag).out.splitlines() for flag in ("--help", "--help-all"))
        assert len(short) <= 45
        assert max(map(len, short)) <= 80
        assert any("--help-all" in line for line in short)
        assert not any("--stride" in line for line in short)
        assert any("--stride" in line for line in whole)

    @pytest.mark.parametrize("name", sorted(OPTIONS))
    def test_required_options_come_first(self, name: str) -> None:
        options = [option for option in commands.main.commands[name].params if isinstance(option, click.Option)]
        required = [option.required for option in options]
        assert required == sorted(required, reverse=True)

    def test_the_version_is_the_packages(self) -> None:
        assert building.command("--version").out == f"prep-tfrecords, version {tfrecord_io.__version__}\n"


class TestDoctor:
    @pytest.mark.slow
    def test_a_local_dataset_is_nothing_for_the_host_of_a_tpu_node(self) -> None:
        outcome = building.command("doctor", reviews(), "--tpu", "node", "--global-batch-size", 32)
        cause, remedy = outcome.error
        assert (outcome.status, f"{reviews()}/reviews-train-0000" in cause) == (1, True)
        assert "outside of gs://" in cause
        assert "copy the dataset to a bucket" in remedy

    @pytest.mark.parametrize("arguments", [["x", "--output", "y"], ["--tpu", "vm"], ["--output=y", "--tpu=vm"]])
    def test_one_thing_at_a_time(self, arguments: list[str]) -> None:
        outcome = building.command("doctor", *arguments)
        assert (outcome.status, outcome.error[0]) == (2, "doctor checks either an output or a finished dataset")

    def test_alone_it_lists_versions_and_nothing_of_the_user(self) -> None:
        versions = json.loads(building.command("doctor", "--json").out)
        assert (versions["prep-tfrecords"], versions["datasets"]) == (
            tfrecord_io.__version__,
            metadata.version("datasets"),
        )
        assert str(Path.home()) not in json.dumps(versions)

    def test_a_place_for_a_dataset(self, tmp_path: Path) -> None:
        outcome = building.command("doctor", "--output", tmp_path / "new", "--json")
        assert outcome.status == 0
        assert {check["name"] for check in json.loads(outcome.out)} >= {"write", "space"}
        assert list(tmp_path.iterdir()) == []
        assert building.command("doctor", "--output", "/proc/x").status == 1


class TestJson:
    def test_build_says_what_it_made(self, tmp_path: Path) -> None:
        outcome = building.command("build", REVIEWS, "--json", *building.options(tmp_path, label_column="label"))
        summary = json.loads(outcome.out)
        seconds = summary.pop("seconds")
        assert 0 < seconds < 100
        facts = building.read_manifest(reviews())
        splits = {}
        for name, split in facts.splits.items():
            made = {"examples": split.num_examples, "tokens": split.num_tokens, "bytes": split.num_bytes}
            ledgers = [{"shard": shard.name, **shard.ledger.to_json()} for shard in split.shards]
            splits[name] = {**made, "shards": len(split.shards), **split.ledger.to_json(), "ledgers": ledgers}
        whole = {"manifest_sha256": manifest.digest(facts), "engines": facts.engines, "fingerprint": facts.fingerprint}
        shards = {"shards_made": sum(len(split.shards) for split in facts.splits.values()), "shards_kept": 0}
        assert summary == {**whole, **shards, "splits": splits}


class TestBadInput:
    """Each mistake is one line of cause and one of remedy, and leaves no manifest."""

    @pytest.mark.parametrize(
        ("changes", "status", "cause", "remedy"),
        [
            ({"split": "test"}, 1, "test", "choose among train, validation"),
            ({"label_column": "stars"}, 1, "has no column 'stars'", "text, label"),
            ({"tokenizer": "no-such-tokenizer-at-all"}, 1, "no-such-tokenizer-at-all", ""),
            ({"max_length": 2}, 2, "2 leaves no room for text: each row has 2 spec", "--max-length 3 or more"),
            ({"hold_out": ("a=1%", "a=2%")}, 2, "names the new split 'a' twice", "another name"),
            ({"shard_size": "100B"}, 2, "--shard-size 100 bytes, but one record takes about", "larger --shard-size"),
            ({"truncation": "only_second"}, 2, "but there is only one text column", "twice"),
            ({"layout": "concat", "special_tokens": "bos-eos"}, 1, "a BOS token, but this tok", "--special-tokens eos"),
        ],
    )
    def test_a_wrong_option_is_named(self, tmp_path: Path, changes: Any, status: int, cause: str, remedy: str) -> None:
        outcome = build(tmp_path / "out", **changes)
        assert outcome.status == status
        assert cause in outcome.error[0]
        assert remedy in outcome.error[1]
        assert not (tmp_path / "out" / "manifest.json").exists()

    def test_an_empty_folder_is_no_dataset(self, tmp_path: Path) -> None:
        (tmp_path / "data").mkdir()
        outcome = build(tmp_path / "out", tmp_path / "data")
        assert (outcome.status, "no files, expected a dataset" in outcome.error[0]) == (1, True)

    def test_an_error_of_several_lines_is_shown_in_one(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        error = SourceError("first line\n  second line", remedy="do\nthis")
        monkeypatch.setattr("pipelines.prepare.launch.launcher.build", seams.raising(error))
        assert build(tmp_path / "out").error == ("first line second line", "do this")

    @pytest.mark.engines
    def test_a_warning_of_ours_is_one_line(self, tmp_path: Path) -> None:
        outcome = build(tmp_path / "out", max_length=200, split="validation")
        assert outcome.status == 0
        (warning,) = (line for line in outcome.err.splitlines() if line.startswith("warning"))
        assert warning.startswith("warning: --max-length 200 is over the limit of 128 tokens")


class TestBadOutput:
    @pytest.mark.parametrize(
        ("output", "cause", "remedy"),
        [
            ("file", "cannot be written: ", "an --output that is a folder"),
            ("file/below", "cannot be written: ", "an --output that is a folder"),
            ("x" * 300, "File name too long", "a shorter --output"),
            ("/proc/prep-tfrecords", "No such file or directory", "where folders can be made"),
            ("nothing://bucket/out", "this address cannot be opened", f"a local folder or a {ADDRESS} address"),
        ],
    )
    def test_a_place_without_folders_is_named(self, tmp_path: Path, output: str, cause: str, remedy: str) -> None:
        (tmp_path / "file").write_bytes(b"mine")
        path = output if "://" in output else str(tmp_path / output)
        error = build(path).error
        assert error[0].startswith(path)
        assert cause in error[0]
        assert remedy in error[1]
        assert building.files(tmp_path) == {"file": b"mine"}


@functools.cache
def mounting() -> tuple[str, ...]:
    """Command prefix for separate mounts: as root, or as root of a new user namespace."""
    for words in (("unshare", "-m"), ("unshare", "-Urm")):
        attempt = [*words, "mount", "-t", "tmpfs", "tmpfs", "/tmp"]
        if shutil.which("unshare") and subprocess.run(attempt, capture_output=True).returncode == 0:
            return words
    return ()


@pytest.mark.slow
class TestDisk:
    """A file system that is full, or a folder that may not be written, for real."""

    def test_on_a_full_disk_the_build_stops_and_goes_on_when_there_is_room(self, tmp_path: Path) -> None:
        if not mounting():
            pytest.skip("neither root nor user namespaces here: no file system can be mounted")
        mount, kept = tmp_path / "mount", tmp_path / "kept"
        mount.mkdir()
        options = building.options(mount / "out", label_column="label", workers=2)
        first, again = words("build", REVIEWS, *options), words("build", REVIEWS, "--json", *options)
        script = (
            f"set -u; mount -t tmpfs -o size=200k tmpfs {mount}; {first}; echo status $?; ls -A {mount}/out; "
            f"echo remounting; mount -o remount,size=10m {mount}; {again}; cp -a {mount}/out {kept}"
        )
        outcome = run([*mounting(), "bash", "-c", script])
        before, _, after = outcome.out.partition("remounting\n")
        assert before.splitlines()[0] == "status 1", outcome.err
        assert "manifest.json" not in before
        assert ".partial" not in before
        cause, remedy = outcome.err.splitlines()[1:3]
        assert cause.startswith(f"error: {mount}/out/")
        assert cause.endswith("cannot be written: No space left on device")
        assert remedy.startswith("remedy: free some space")
        assert "Traceback" not in outcome.err
        summary = json.loads(after)
        assert summary["shards_made"] + summary["shards_kept"] == 4
        assert building.files(kept) == building.files(reviews())

    def test_a_folder_without_permission_is_named(self, tmp_path: Path) -> None:
        """Run as root, the process first gives up root's right to ignore permissions."""
        locked = tmp_path / "locked"
        locked.mkdir(mode=0o555)
        program = building.program("build", REVIEWS, *building.options(locked / "out"))
        dropped = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override"] if os.geteuid() == 0 else []
        outcome = run([*dropped, *program])
        cause, remedy = outcome.error
        assert outcome.status == 1
        assert cause.endswith(f"cannot be written: {os.strerror(errno.EACCES)}")
        assert remedy == "choose an --output that you may write to"


AGAIN = "run the same command again"
INTERRUPTED = ("interrupted", AGAIN)
BUILD_INTERRUPTED = ("interrupted before the dataset was complete", f"{AGAIN}; finished shards are kept")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large") / "reviews"
    folder.mkdir()
    (folder / "train.jsonl").write_bytes((REVIEWS / "train.jsonl").read_bytes() * 5)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("stop", "workers"), [(signal.SIGINT, 1), (signal.SIGKILL, 2)])
def test_a_stopped_build_can_be_finished(tmp_path: Path, large: Path, stop: signal.Signals, workers: int) -> None:
    output = tmp_path / "out"
    options = building.options(output, label_column="label", shard_size="10kB", workers=workers)
    with building.started(building.program("build", large, *options), output, shards=3) as process:
        process.send_signal(stop)
        _, err = process.communicate()
    assert not (output / "manifest.json").exists()
    if stop != signal.SIGKILL:
        outcome = Outcome(status=process.returncode, out="", err=err)
        assert outcome.status == 128 + stop
        assert outcome.error == BUILD_INTERRUPTED
        assert len(err.splitlines()) == 3
    else:
        assert process.returncode == -stop

    again = building.command("build", large, "--json", *options)
    assert again.status == 0, again.err
    assert json.loads(again.out)["shards_kept"] >= 3
    clean = building.built(large, label_column="label", shard_size="10kB", workers=2)
    assert building.files(output) == building.files(clean)


@pytest.mark.parametrize(
    ("where", "arguments", "error"),
    [
        ("launch.launcher.open_request", ["build", "D", "--tokenizer=t", "--output=o"], BUILD_INTERRUPTED),
        ("launch.estimate.estimate", ["plan", "D", "--tokenizer=t"], INTERRUPTED),
        ("dataset.own_files.require_manifest", ["inspect", "D"], INTERRUPTED),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_an_interrupt_is_two_lines_and_status_130_and_only_a_build_leaves_a_dataset_incomplete(
    where: str, arguments: list[str], error: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"pipelines.prepare.{where}", seams.raising(KeyboardInterrupt()))
    outcome = building.command(*arguments)
    assert (outcome.status, outcome.error) == (130, error)


SECRET_PLACE = "https://me:hush@host/file.parquet?X-Goog-Signature=hush"


@pytest.mark.parametrize("command", sorted(OPTIONS))
def test_an_unknown_error_is_two_lines_without_secrets(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = RuntimeError(f"no\x1b[2J way to open {SECRET_PLACE}")
    launched = ("launcher.open_request", "estimate.estimate", "doctor.diagnose", "tokenizer_launcher.train_tokenizer")
    for where in (*map("launch.{}".format, launched), "dataset.own_files.require_manifest", "report.report.of_dataset"):
        monkeypatch.setattr(f"pipelines.prepare.{where}", seams.raising(wrong))
    arguments = {
        "build": ["D", "--tokenizer=t", "--output=o"],
        "doctor": ["--output=o"],
        "export": ["D", "--to=parquet", "--output=o"],
        "plan": ["D", "--tokenizer=t"],
        "report": ["D", "--output=o"],
        "tokenizer": ["D", "--kind=bpe", "--vocab-size=9", "--output=o"],
        "trace": ["D", "--split=s", "--shard=0", "--record=0"],
    }.get(command, ["D"])
    short, long = (building.command(command, *arguments, *more) for more in ([], ["--verbose"]))
    assert short.status == long.status == 1
    cause, remedy = short.error
    assert cause == r"unexpected RuntimeError: no\x1b[2J way to open https://...@host/file.parquet?..."
    assert "--verbose" in remedy
    assert len(short.err.splitlines()) == 2
    assert long.err.count("Traceback") == 1
    assert long.err.splitlines()[-2:] == short.err.splitlines()
    assert not {"hush", "\x1b"} & {long.err[at : at + size] for size in (1, 4) for at in range(len(long.err))}


def test_a_warning_shows_no_secret_and_no_escape_sequence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    def warn(*args: object, **kwargs: object) -> None:
        log = logging.getLogger("pipelines.prepare.launch.launcher")
        log.warning("%s: column %r is\x1b[2J gone", SECRET_PLACE, "a\u202eb")
        raise OutputError("x", remedy="y")

    seams.put(monkeypatch, open_request=warn)
    outcome = build(tmp_path / "out")
    expected = r"warning: https://...@host/file.parquet?...: column 'a\u202eb' is\x1b[2J gone"
    assert outcome.err.splitlines()[0] == expected


def test_verbose_logs_of_any_library_show_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        try:
            raise OSError(SECRET_PLACE)
        except OSError:
            logging.getLogger("someone.else").exception("asked %s", SECRET_PLACE)
            raise

    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr("pipelines.prepare.dataset.own_files.require_manifest", fail)
    outcome = building.command("inspect", "D", "--verbose")
    assert "ERROR someone.else: asked https://...@host/file.parquet?...\nTraceback" in outcome.err
    assert "hush" not in outcome.err


@pytest.mark.slow
def test_the_program_ends_after_an_error_though_a_thread_never_does(tmp_path: Path) -> None:
    thread = "import sys, threading, time; threading.Thread(target=time.sleep, args=(10**6,)).start()\n"
    program = "from pipelines.cli import commands; commands.main(['verify', sys.argv[1]])"
    outcome = run([sys.executable, "-c", thread + program, str(tmp_path)])
    assert outcome.status == 1
    assert "no manifest.json" in outcome.error[0]


def test_the_copy_of_a_source_as_it_was_makes_room_for_the_next(tmp_path: Path) -> None:
    rows = building.source(tmp_path / "source", train=[{"text": "a good film"}] * 20)
    for broken in ("{", "{{"):
        (rows / "train_z.jsonl").write_text('{"text": "fine"}\n' + broken + "\n")
        ran = building.command("build", rows, *building.options(tmp_path / "out"))
        assert "train_z.jsonl, after row 0: cannot be read: JSON parse error" in ran.error[0]
        assert len(list((tmp_path / "out" / ".prep").glob("rows-*"))) == 1


def test_other_rows_are_refused_without_a_copy_left_behind(tmp_path: Path) -> None:
    rows = building.source(tmp_path / "source", train=[{"text": "a good film"}] * 20)
    assert building.command("build", rows, *building.options(tmp_path / "out", limit=5)).status == 0
    before = building.files(tmp_path / "out")
    ran = building.command("build", rows, *building.options(tmp_path / "out", limit=7))
    assert "planned for the rows train[0:5]" in ran.error[0]
    assert building.files(tmp_path / "out") == before
    assert not list((tmp_path / "out" / ".prep").glob("rows-*"))


@pytest.mark.parametrize(
    ("words", "cause", "page"),
    [
        (["build", "d", "--max-length=x"], "invalid value for '--max-length': 'x' is not a valid integer", "build "),
        (["build", "d", "--output=o"], "missing option '--tokenizer'", "build "),
        (["trace", "d"], "missing option '--split'", "trace "),
        (["buld"], "no such command 'buld'", ""),
    ],
)
def test_a_wrong_option_is_two_lines_like_every_error(words: list[str], cause: str, page: str) -> None:
    outcome = building.command(*words)
    assert outcome.status == 2
    assert outcome.error[0].startswith(cause)
    assert outcome.error[1] == f"see `prep-tfrecords {page}--help`"
    assert len(outcome.err.splitlines()) == 2


def test_the_folder_of_a_finished_dataset_stands_for_its_tokenizer(tmp_path: Path) -> None:
    outcome = building.command("build", REVIEWS, *building.options(tmp_path / "out", tokenizer=reviews()))
    assert outcome.status == 0, outcome.err
    made, other = (building.read_manifest(root).tokenizer for root in (tmp_path / "out", reviews()))
    assert (made.name, made.vocab_size) == ("tokenizer", other.vocab_size)
