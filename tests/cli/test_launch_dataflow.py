"""The launcher script with a fake gcloud: its checks, its messages, and the commands it runs."""

import dataclasses
from pathlib import Path

import pytest

from tests import building
from tests.support import processes

SCRIPT = building.REPOSITORY / "scripts" / "launch_dataflow.sh"
BUILD = ("--", "imdb", "--output", "gs://bucket/imdb", "--tokenizer", "gpt2")
WORKER = "serviceAccount:123-compute@developer.gserviceaccount.com"

# Answers by its words; what begins with ! fails.
GCLOUD = """#!/usr/bin/env bash
while IFS=$'\\t' read -r words answer; do
  case "$*" in
    $words*)
      [ "${answer:0:1}" != "!" ] || exit 1
      printf '%b' "$answer"
      exit 0 ;;
  esac
done < "$(dirname "$0")/answers"
exit 1
"""
PREP = """#!/usr/bin/env bash
printf '%s\\n' "$@"
"""
ROLES = {
    f"projects get-iam-policy some-project * --filter=bindings.members={WORKER}": "roles/dataflow.worker\\n",
    f"storage buckets get-iam-policy gs://bucket * --filter=bindings.members={WORKER}": "roles/storage.objectAdmin\\n",
    "projects get-iam-policy some-project * --filter=bindings.members=user:me@x.org": "roles/dataflow.admin\\n",
    "storage buckets get-iam-policy gs://bucket * --filter=bindings.members=user:me@x.org": "roles/storage.admin\\n",
    "iam service-accounts get-iam-policy 123-compute@": "roles/iam.serviceAccountUser\\n",
}
ANSWERS = {
    "config get project": "some-project\\n",
    "config get dataflow/region": "",
    "config get compute/region": "us-central1\\n",
    "config get account": "me@x.org\\n",
    "auth application-default print-access-token": "secret-token\\n",
    "storage buckets describe gs://bucket": "US-CENTRAL1\\n",
    "services list": "".join(
        f"{name}.googleapis.com\\n" for name in ("compute", "dataflow", "storage-component", "logging")
    ),
    "projects describe some-project": "123\\n",
    **ROLES,
}


@dataclasses.dataclass(frozen=True)
class Ended:
    """Exit status of the script, the arguments of `prep-tfrecords`, and the script's own lines."""

    status: int
    arguments: list[str]
    lines: list[str]


def run(folder: Path, *arguments: str, **changes: str) -> Ended:
    """`changes` replace the answer to the words that begin so."""
    answers = {
        words: next((answer for name, answer in changes.items() if words.startswith(name.replace("_", " "))), answer)
        for words, answer in ANSWERS.items()
    }
    tools = folder / "tools"
    tools.mkdir()
    (tools / "answers").write_text("".join(f"{words}\t{answer}\n" for words, answer in answers.items()))
    for name, text in (("gcloud", GCLOUD), ("prep-tfrecords", PREP)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    ended = processes.run([SCRIPT, *arguments], env={"PATH": f"{tools}:/usr/bin:/bin"})
    return Ended(ended.returncode, ended.stdout.splitlines(), ended.stderr.splitlines())


def test_it_runs_a_build_with_what_gcloud_says_and_what_suits(tmp_path: Path) -> None:
    ended = run(tmp_path, *BUILD, "--seed", "3")
    assert ended.status == 0, ended.lines
    assert ended.arguments == [
        *("build", "imdb", "--output", "gs://bucket/imdb", "--tokenizer", "gpt2", "--seed", "3", "--"),
        "--runner=DataflowRunner",
        "--project=some-project",
        "--region=us-central1",
        "--temp_location=gs://bucket/tmp",
        "--machine_type=n2-standard-8",
        "--service_account_email=123-compute@developer.gserviceaccount.com",
        "--number_of_worker_harness_threads=1",
    ]
    assert ended.lines == [f"prep-tfrecords {' '.join(ended.arguments)}"], "nothing to warn of, and no token"


def test_options_of_beam_win_over_settings(tmp_path: Path) -> None:
    options = ["--project=p-2", "--region", "europe-west4", "--temp_location=gs://other/t", "--max_num_workers=40"]
    options += ["--service_account_email=s@x", "--machine_type=custom"]
    ended = run(tmp_path, *BUILD, "--", *options)
    assert ended.status == 0, ended.lines
    assert ended.arguments.count("--") == 1
    added = ["--runner=DataflowRunner", "--number_of_worker_harness_threads=1"]
    assert ended.arguments[ended.arguments.index("--") + 1 :] == [*options, *added]


def test_looking_only_launches_nothing(tmp_path: Path) -> None:
    ended = run(tmp_path, "--check", *BUILD)
    assert (ended.status, ended.arguments) == (0, [])
    assert ended.lines[-1].startswith("prep-tfrecords build imdb")


@pytest.mark.parametrize(
    ("arguments", "changes", "error", "remedy"),
    [
        ([], {}, "nothing to build", "name a dataset and its options after --"),
        (["--project", "x", *BUILD], {}, "unknown option --project", "Beam options after another --"),
        (["--", "imdb", "--tokenizer", "gpt2"], {}, "--output is missing", "gs://BUCKET/FOLDER"),
        (["--", "imdb", "--output=/local"], {}, "--output /local, expected a gs:// address", "gs://BUCKET/FOLDER"),
        (BUILD, {"config_get_project": ""}, "no Google Cloud project is set", "gcloud config set project"),
        (BUILD, {"config_get_compute/region": ""}, "no Google Cloud region is set", "gcloud config set compute/region"),
        (BUILD, {"config_get_account": ""}, "gcloud has no account", "gcloud auth login"),
        (BUILD, {"auth": "!"}, "no application default credentials", "gcloud auth application-default login"),
        (BUILD, {"storage_buckets_describe": "!"}, "gcloud finds no bucket gs://bucket", "buckets create gs://bucket"),
        (
            BUILD,
            {"services_list": "compute.googleapis.com\\nlogging.googleapis.com\\n"},
            "these Google Cloud APIs are not enabled: dataflow.googleapis.com storage-component.googleapis.com",
            "gcloud services enable dataflow.googleapis.com storage-component.googleapis.com --project=some-project",
        ),
    ],
)
def test_what_is_missing_is_an_error_with_its_remedy(
    tmp_path: Path, arguments: list[str], changes: dict[str, str], error: str, remedy: str
) -> None:
    ended = run(tmp_path, *arguments, **changes)
    assert (ended.status, ended.arguments) == (1, [])
    assert ended.lines[-2].startswith(f"error: {error}")
    assert ended.lines[-1].startswith("remedy: ")
    assert remedy in ended.lines[-1]


def test_roles_that_are_not_seen_are_named_with_the_command_that_gives_them(tmp_path: Path) -> None:
    ended = run(tmp_path, *BUILD, projects_get="", storage_buckets_get="!", iam="roles/viewer\\n")
    assert ended.status == 0, "a group may have given them"
    text = "\n".join(ended.lines)
    assert f"gcloud projects add-iam-policy-binding some-project --member={WORKER} --role=roles/dataflow.worker" in text
    assert "--member=user:me@x.org --role=roles/dataflow.admin" in text
    assert f"may not list the roles on gs://bucket; {WORKER} needs roles/storage.objectAdmin on it" in text
    assert "gcloud iam service-accounts add-iam-policy-binding 123-compute@developer.gserviceaccount.com" in text


def test_a_bucket_elsewhere_is_warned_of(tmp_path: Path) -> None:
    ended = run(tmp_path, *BUILD, storage_buckets_describe="EUROPE-WEST4\\n")
    assert ended.status == 0
    assert "the bucket is in EUROPE-WEST4 and the workers in us-central1" in ended.lines[0]


def test_help_is_the_head_of_the_script(tmp_path: Path) -> None:
    ended = run(tmp_path, "--help")
    assert ended.status == 0
    assert "roles/dataflow.worker             on the project" in "\n".join(ended.arguments)
