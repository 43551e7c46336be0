# shellcheck shell=bash
# Sourced by the scripts that need Python: one virtual environment for a purpose, made once, reused while setup.cfg stays the same.
#
#   prepare NAME EXTRAS   makes .venv-NAME with orind[EXTRAS] (editable) and sets $python
#   leave_nothing         cleans up at the script's end
#   beside COMMAND...     starts a command or function beside what follows; `join_beside` waits for it, prints what it said and
#                         has its exit status. One at a time; after `leave_nothing`.
#
# ORIND_PYTHON names the interpreter to use (default: the first of python3.12, 3.11, 3.10, python3 that is new enough).

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf '== %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# Debian and Ubuntu install what is missing, all at once; otherwise, or without root, they are named.
need_packages() {
    local missing=() name
    command -v apt-get >/dev/null || { say "no apt-get here; needed are: $*"; return; }
    if [ "$(id -u)" = 0 ] && ! apt-cache show python3 >/dev/null 2>&1; then
        say "reading the package lists"
        apt-get update -qq >"$root/.apt.log" 2>&1 || { tail -n 20 "$root/.apt.log" >&2; die "apt-get update failed"; }
    fi
    for name in "$@"; do
        [ "$name" != libturbojpeg ] || name=$(jpeg_package)
        dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q 'ok installed' || missing+=("$name")
    done
    [ ${#missing[@]} -eq 0 ] && return
    [ "$(id -u)" = 0 ] || die "please install first: sudo apt-get install ${missing[*]}"
    say "installing ${missing[*]}"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"; } \
        >"$root/.apt.log" 2>&1 || { tail -n 20 "$root/.apt.log" >&2; die "apt-get could not install ${missing[*]}"; }
}

# Debian's name for the JPEG library where it is known or installed, else Ubuntu's.
jpeg_package() {
    if dpkg-query -W libturbojpeg0 >/dev/null 2>&1 || apt-cache show libturbojpeg0 >/dev/null 2>&1; then
        echo libturbojpeg0
    else
        echo libturbojpeg
    fi
}

# The interpreter: ORIND_PYTHON, or the first that is new enough. Headers and venv come with the distribution's python3.
find_python() {
    local candidate
    for candidate in ${ORIND_PYTHON:-python3.12 python3.11 python3.10 python3}; do
        if "$candidate" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 13))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    [ -z "${ORIND_PYTHON:-}" ] || die "ORIND_PYTHON=$ORIND_PYTHON is not a Python 3.10 to 3.12"
    die "no Python 3.10 to 3.12 found; install python3 and python3-venv, or name one in ORIND_PYTHON"
}

prepare() {
    local name=$1 extras=$2 base stamp
    base=$(find_python)
    "$base" -c 'import ensurepip' 2>/dev/null \
        || die "$base has no ensurepip: install its venv package (python3-venv), or name another in ORIND_PYTHON"
    venv=$root/.venv-$name
    stamp=$({ cat "$root/setup.cfg" "$root/pyproject.toml"; "$base" --version; echo "$extras"; } | sha256sum | cut -d' ' -f1)
    python=$venv/bin/python
    if [ -x "$python" ] && [ "$(cat "$venv/orind.stamp" 2>/dev/null)" = "$stamp" ]; then
        say "using the environment in $(basename "$venv")"
        return
    fi
    say "setting up $(basename "$venv") with $("$base" --version) (once; later runs reuse it)"
    rm -rf "$venv"
    "$base" -m venv "$venv" || die "python3 -m venv failed; on Debian and Ubuntu: apt-get install python3-venv"
    "$python" -m pip install -q --disable-pip-version-check -e "$root[$extras]" >"$venv/pip.log" 2>&1 \
        || { tail -n 20 "$venv/pip.log" >&2; die "pip could not install the packages (all of it: $venv/pip.log)"; }
    "$python" -c 'import orind.ipc.wire' || die "the installation in $venv does not work"
    echo "$stamp" >"$venv/orind.stamp"
}

# Nothing is left behind at the script's end, nor after SIGTERM and SIGHUP to it alone, for which bash does not wait for what
# runs in the foreground: not what is named in `temporary`, not the command beside it, not what runs, nor what these started.
# pytest ends its tests' daemons itself (tests/conftest.py). A terminal's Ctrl-C reaches the foreground without us; the script
# ends with it also where it goes on after a command that failed.
temporary=() beside_pid= end_s=30
clean_up() {
    local all=() running begin=$SECONDS
    trap '' INT TERM HUP
    add_descendants $$
    while running=$(children $$) && [ -n "$running" ]; do
        if [ $((SECONDS - begin)) -ge "$end_s" ]; then
            printf 'error: not over %s s after SIGTERM: %s\n' "$end_s" "${running//$'\n'/ }" >&2
            add_descendants $$
            kill -KILL "${all[@]}" 2>/dev/null || true
            break
        fi
        [ -z "$beside_pid" ] || kill -TERM -- -"$beside_pid" 2>/dev/null || true
        # shellcheck disable=SC2086  # one word a process
        kill -TERM $running 2>/dev/null || true
        sleep 0.3
    done
    [ ${#all[@]} -eq 0 ] || kill -TERM "${all[@]}" 2>/dev/null || true
    rm -rf "${temporary[@]}"
}

# What process $1 has started and is not over, without the subshell that asks.
children() {
    local asks=$BASHPID
    pgrep -P "$1" | grep -vx "$asks" || true
}

# Adds these to `all`, and what they have started, and so on.
add_descendants() {
    local child
    for child in $(children "$1"); do
        all+=("$child")
        add_descendants "$child"
    done
}

leave_nothing() {
    trap clean_up EXIT
    trap 'exit 130' INT
}

beside() {
    beside_said=$(mktemp)
    temporary+=("$beside_said")
    set -m  # a process group of its own: all that it starts can be ended with it
    { trap : TERM; "$@"; } >"$beside_said" 2>&1 </dev/null &  # its end is the command's, also after SIGTERM to the group
    set +m
    beside_pid=$!
}

join_beside() {
    local status=0
    wait "$beside_pid" || status=$?
    beside_pid=
    cat "$beside_said"
    return "$status"
}
