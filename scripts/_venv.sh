# Sourced by the other scripts: finds a Python, makes .venv, and installs this project there if needed.
#
#   venv_make [PYTHON]      make sure that .venv exists and runs; PYTHON, if given, decides its version
#   venv_install EXTRA      `pip install -e .[EXTRA]`, unless setup.py and Python are unchanged; base means no extra, dev
#                           the versions and digests that scripts/lock wrote for this Python
#   venv_ready EXTRA        check whether that install is up to date
#
# The stamp .venv/.installed-EXTRA is written only after a successful install, so an interrupted one is repeated.

VENV=.venv
CALLED_FROM="$OLDPWD" # the scripts change to the project's root before they source this file
# Tested versions of Python, newest first. Only setup.py's classifiers list them.
PYTHONS="$(sed -n 's/.*"Programming Language :: Python :: \(3\.[0-9][0-9]*\)".*/\1/p' setup.py | sort -t. -k2 -rn)"
OLDEST_PYTHON="${PYTHONS##*$'\n'}"
TESTED="$(paste -sd ' ' - <<<"$PYTHONS")"

say() { printf '%s\n' "$*" >&2; }

die() {
  say "error: $1"
  [ $# -lt 2 ] || say "remedy: $2"
  exit 1
}

# Runs the candidate, because a name on PATH may be a version manager's shim for a Python that is not installed, and some
# distributions package venv and ensurepip separately.
python_works() {
  "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] < tuple(map(int, sys.argv[1].split("."))))' \
    "$OLDEST_PYTHON" >/dev/null 2>&1
}

python_version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'; }

find_python() {
  local wanted="${1:-}" candidate
  case "$wanted" in
    /*) ;;
    */*) wanted="$CALLED_FROM/$wanted" ;;
  esac
  if [ -n "$wanted" ]; then
    python_works "$wanted" || die "$wanted is no Python $OLDEST_PYTHON or newer with the module venv" \
      "name another Python with --python or \$PYTHON (on Debian and Ubuntu, venv is in the package python3-venv)"
    printf '%s\n' "$wanted"
    return
  fi
  for candidate in ${PYTHONS//3./python3.} python3 python; do
    if python_works "$candidate"; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  die "no Python $OLDEST_PYTHON or newer with the venv module is on PATH" \
    "install one (on Debian and Ubuntu also python3-venv), or name one: PYTHON=/path/to/python3 $0"
}

venv_make() {
  local wanted="${1:-}" python
  if python_works "$VENV/bin/python"; then
    [ -n "$wanted" ] || return 0
    python="$(find_python "$wanted")"
    [ "$(python_version "$python")" != "$(python_version "$VENV/bin/python")" ] || return 0
  else
    python="$(find_python "$wanted")"
  fi
  say "making $VENV with $python ($(python_version "$python"))"
  grep -qxF "$(python_version "$python")" <<<"$PYTHONS" || say "note: this project is tested with Python $TESTED"
  "$python" -m venv --clear "$VENV" ||
    die "$python could not make $VENV" \
      "read its output above; common causes are a full disk and a missing write permission"
}

LOCKED=dev # or lowest: the file of requirements/ to install for dev
lock_file() { printf 'requirements/%s-py%s.txt\n' "$LOCKED" "${1/./}"; }

# Prints the file with the locked versions for an extra; nothing on systems without locked versions.
locked() {
  local file
  file="$(lock_file "$(python_version "$VENV/bin/python")")"
  if [ "$1" = dev ] && [ -f "$file" ] && [ "$(uname -sm)" = "Linux x86_64" ]; then printf '%s\n' "$file"; fi
}

venv_stamp() {
  "$VENV/bin/python" -c '
import hashlib, pathlib, sys
needed = map(pathlib.Path, ["setup.py", *sys.argv[1:]])
print(hashlib.sha256(b"".join(map(pathlib.Path.read_bytes, needed))).hexdigest(), sys.version.split()[0])' \
    $(locked "$1")
}

venv_ready() {
  [ -f "$VENV/.installed-$1" ] && [ "$(cat "$VENV/.installed-$1")" = "$(venv_stamp "$1")" ]
}

venv_install() {
  local extra="$1" named="[$1]" lock
  [ "$extra" != base ] || named=""
  ! venv_ready "$extra" || return 0
  say "installing .$named into $VENV; the first time takes some minutes"
  rm -f "$VENV/.installed-$extra"
  lock="$(locked "$extra")"
  if [ -n "$lock" ]; then
    # pip checks the digest of each package, including build requirements. The file is complete, so --no-deps is enough, and
    # necessary: pip before 23.3 would take the newest version for name[extra], which has no digest here.
    venv_pip --require-hashes --no-deps --requirement "$lock"
    venv_pip --no-deps --no-build-isolation --editable .
    "$VENV/bin/python" -m pip check --disable-pip-version-check >&2 ||
      die "$lock lacks a package that setup.py or another package requires" "run scripts/lock"
  else
    venv_pip --upgrade pip
    venv_pip --editable ".$named"
  fi
  venv_stamp "$extra" >"$VENV/.installed-$extra"
}

venv_pip() {
  "$VENV/bin/python" -m pip install --quiet --quiet --no-input --disable-pip-version-check "$@" ||
    die "pip could not install $*" "read pip's output above; without a network or behind a proxy, set HTTPS_PROXY, or \
PIP_INDEX_URL to a mirror; if a package has no version for $(python_version "$VENV/bin/python"), choose one of Python $TESTED"
}
