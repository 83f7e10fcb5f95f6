#!/usr/bin/env bash
# Builds a dataset on Google Cloud Dataflow: checks the job's requirements, then launches it.
#
#   scripts/launch_dataflow.sh [--check] -- DATASET --output gs://BUCKET/FOLDER --tokenizer NAME [BUILD OPTIONS]
#                                        [-- BEAM OPTIONS]
#
#   --check       only check, launch nothing
#
# Defaults of Beam options, which come after a second --:
#
#   --project                 gcloud config get project
#   --region                  gcloud config get dataflow/region, or compute/region; best the bucket's region
#   --temp_location           tmp/ in the bucket of --output
#   --service_account_email   the project's Compute Engine default service account
#   --machine_type            n2-standard-8
#   --number_of_worker_harness_threads   1: shards that each process makes at a time
#
# Required roles:
#
#   the launching user    roles/dataflow.admin              on the project
#                         roles/iam.serviceAccountUser      on the workers' service account
#                         roles/storage.objectAdmin         on the bucket
#                         roles/serviceusage.serviceUsageConsumer  on the project, for listing APIs
#   the service account   roles/dataflow.worker             on the project
#                         roles/storage.objectAdmin         on the bucket
#                         roles/artifactregistry.reader     on the repository of an image
#
# docs/how-to/dataflow.md has the memory that shards need, and images.
set -euo pipefail

say() { printf '%s\n' "$*" >&2; }

die() {
  say "error: $1"
  say "remedy: $2"
  exit 1
}

usage() {
  sed -n '2,/^set -euo/{/^set -euo/d;s/^# \{0,1\}//;p;}' "$0"
  exit "$1"
}

CHECK=""
while [ $# -gt 0 ]; do
  case "$1" in
    --check) CHECK=1 && shift ;;
    -h | --help) usage 0 ;;
    --) shift && break ;;
    *) die "unknown option $1" "put options of prep-tfrecords build after --, and Beam options after another --" ;;
  esac
done
[ $# -gt 0 ] || die "nothing to build" \
  "name a dataset and its options after --, for example: -- imdb --output gs://BUCKET/imdb --tokenizer gpt2"

# given NAME ARGUMENTS...: print the value of an option.
given() {
  local name="$1"
  shift
  while [ $# -gt 0 ]; do
    case "$1" in
      "$name") printf '%s\n' "${2:-}" && return ;;
      "$name"=*) printf '%s\n' "${1#*=}" && return ;;
    esac
    shift
  done
}

bucket_of() {
  local rest="${1#gs://}"
  printf '%s\n' "${rest%%/*}"
}

# gcloud prints "(unset)" to stderr, and nothing to stdout.
setting() { gcloud config get "$1" 2>/dev/null || true; }

check_tools() {
  command -v gcloud >/dev/null || die "gcloud is not on PATH" "install the Google Cloud CLI, then: gcloud init"
  command -v prep-tfrecords >/dev/null || die "prep-tfrecords is not on PATH" \
    "activate the environment where it is installed, with Google's libraries: pip install 'apache-beam[gcp]'"
}

check_settings() {
  PROJECT="$(given --project "$@")"
  PROJECT="${PROJECT:-$(setting project)}"
  [ -n "$PROJECT" ] || die "no Google Cloud project is set" \
    "give --project=PROJECT after a second --, or run: gcloud config set project PROJECT"
  REGION="$(given --region "$@")"
  REGION="${REGION:-$(setting dataflow/region)}"
  REGION="${REGION:-$(setting compute/region)}"
  [ -n "$REGION" ] || die "no Google Cloud region is set" \
    "give --region=REGION after a second --, best the bucket's, or run: gcloud config set compute/region REGION"
  [ -n "$(setting account)" ] || die "gcloud has no account" "run: gcloud auth login"
  gcloud auth application-default print-access-token >/dev/null 2>&1 || die \
    "no application default credentials, which Beam needs" "run: gcloud auth application-default login"
}

check_places() {
  OUTPUT="$(given --output "$@")"
  case "$OUTPUT" in
    gs://?*/?*) ;;
    *) die "--output ${OUTPUT:-is missing}, expected a gs:// address with a folder" \
      "give --output gs://BUCKET/FOLDER after --" ;;
  esac
  BUCKET="$(bucket_of "$OUTPUT")"
  local location make="gcloud storage buckets create gs://$BUCKET --project=$PROJECT --location=$REGION"
  location="$(gcloud storage buckets describe "gs://$BUCKET" --project="$PROJECT" --format='value(location)' \
    2>/dev/null)" || die "gcloud finds no bucket gs://$BUCKET that this account may read" \
    "choose another account (gcloud auth login), or run: $make --uniform-bucket-level-access"
  case "$(printf '%s' "$location" | tr '[:upper:]' '[:lower:]')" in
    "$REGION") ;;
    *-*)
      say "warning: the bucket is in $location and the workers in $REGION, which is slow, and traffic costs money;"
      say "  give the bucket's region as --region, or an --output in a bucket in $REGION" ;;
  esac
}

check_services() {
  local enabled name missing=()
  enabled="$(gcloud services list --enabled --project="$PROJECT" --format='value(config.name)' 2>/dev/null)" || {
    say "warning: this account may not list the enabled APIs; ask for roles/serviceusage.serviceUsageConsumer"
    return
  }
  for name in dataflow compute storage-component logging; do
    grep -qx "$name.googleapis.com" <<<"$enabled" || missing+=("$name.googleapis.com")
  done
  [ ${#missing[@]} -eq 0 ] || die "these Google Cloud APIs are not enabled: ${missing[*]}" \
    "run: gcloud services enable ${missing[*]} --project=$PROJECT"
}

check_roles() {
  local number me
  ACCOUNT="$(given --service_account_email "$@")"
  if [ -z "$ACCOUNT" ]; then
    number="$(gcloud projects describe "$PROJECT" --format='value(projectNumber)' 2>/dev/null)" ||
      die "gcloud finds no project $PROJECT that this account may read" \
        "correct --project, or choose another account: gcloud auth login"
    ACCOUNT="$number-compute@developer.gserviceaccount.com"
  fi
  me="$(setting account)"
  case "$me" in
    *.gserviceaccount.com) me="serviceAccount:$me" ;;
    *) me="user:$me" ;;
  esac
  look_for projects "$PROJECT" "serviceAccount:$ACCOUNT" roles/dataflow.worker "roles/editor roles/owner"
  look_for "storage buckets" "gs://$BUCKET" "serviceAccount:$ACCOUNT" roles/storage.objectAdmin "roles/storage.admin"
  look_for projects "$PROJECT" "$me" roles/dataflow.admin "roles/editor roles/owner"
  look_for "storage buckets" "gs://$BUCKET" "$me" roles/storage.objectAdmin "roles/storage.admin"
  look_for "iam service-accounts" "$ACCOUNT" "$me" roles/iam.serviceAccountUser "roles/owner"
}

# look_for KIND NAME MEMBER ROLE "ROLES THAT DO TOO": warn if the role is missing. Not an error, because roles from a
# group, a folder or another resource are not visible here.
look_for() {
  local roles role where=()
  read -r -a where <<<"$1"
  roles="$(gcloud "${where[@]}" get-iam-policy "$2" --project="$PROJECT" --flatten='bindings[].members' \
    --filter="bindings.members=$3" --format='value(bindings.role)' 2>/dev/null)" || {
    say "warning: this account may not list the roles on $2; $3 needs $4 on it"
    return
  }
  for role in $4 $5; do
    if grep -qx "$role" <<<"$roles"; then return; fi
  done
  say "warning: $3 has no role $4 of its own on $2; unless a group or a folder grants it, run:"
  say "  gcloud $1 add-iam-policy-binding $2 --member=$3 --role=$4"
}

launch() {
  local each beam=()
  for each in --runner=DataflowRunner "--project=$PROJECT" "--region=$REGION" "--temp_location=gs://$BUCKET/tmp" \
    --machine_type=n2-standard-8 "--service_account_email=$ACCOUNT" --number_of_worker_harness_threads=1; do
    [ -n "$(given "${each%%=*}" "$@")" ] || beam+=("$each")
  done
  case " $* " in
    *" -- "*) set -- "$@" "${beam[@]}" ;;
    *) set -- "$@" -- "${beam[@]}" ;;
  esac
  say "prep-tfrecords build $*"
  [ -z "$CHECK" ] || return 0
  exec prep-tfrecords build "$@"
}

check_tools
check_settings "$@"
check_places "$@"
check_services
check_roles "$@"
launch "$@"
