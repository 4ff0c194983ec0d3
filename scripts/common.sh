# Shared by scripts/run, scripts/test and scripts/lint: finds Python, makes environments, installs the checkout.
# Packages come through pip, so its own settings (index, proxy, certificate) hold. Sourced, never run.

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

# Prints the first Python that is new enough: $PYTHON, else python3, else a versioned one.
find_python() {
    local name
    for name in ${PYTHON:+"$PYTHON"} python3 python3.14 python3.13 python3.12 python3.11 python3.10 python; do
        if "$name" -c 'import sys; raise SystemExit(sys.version_info < (3, 10))' 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    die "Python 3.10 or newer was not found; install it, or name one: PYTHON=/path/to/python3 $0"
}

# make_venv DIR: a virtual environment with pip, without root where Python offers any way to one.
make_venv() {
    local venv=$1 python
    if [ -x "$venv/bin/python" ] && "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        return
    fi
    python=$(find_python) || exit 1
    rm -rf "$venv"
    say "making $venv with $("$python" --version 2>&1)"
    "$python" -m venv "$venv" >/dev/null 2>&1 && return
    # Debian and Ubuntu split ensurepip off into python3-venv; a pip outside can fill an empty environment.
    rm -rf "$venv"
    if "$python" -m venv --without-pip "$venv" >/dev/null 2>&1 &&
        "$python" -m pip --python "$venv/bin/python" install --quiet pip >/dev/null 2>&1; then
        return
    fi
    rm -rf "$venv"
    if command -v uv >/dev/null 2>&1 && uv venv --quiet --seed --python "$python" "$venv"; then
        return
    fi
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        say "installing python3-venv with apt-get"
        if apt_install python3-venv && "$python" -m venv "$venv"; then
            return
        fi
    fi
    rm -rf "$venv"
    die "this Python cannot make a virtual environment; run: sudo apt install python3-venv"
}

apt_install() {
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@"; } >&2 </dev/null
}

# One line that changes when the named files or folders do, or the Python that would run them.
fingerprint() {
    local python=$1
    shift
    "$python" - "$@" <<'PY'
import hashlib, pathlib, sys
digest = hashlib.sha256(sys.version.encode())
for root in map(pathlib.Path, sys.argv[1:]):
    for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
        if path.is_file() and path.suffix != ".pyc":
            digest.update(f"{path}\0".encode() + path.read_bytes())
print(digest.hexdigest())
PY
}

# install_checkout VENV REQUIREMENT FILES...: pip install, skipped while FILES are those of the last time.
install_checkout() {
    local venv=$1 stamp=$1/.installed wanted
    shift
    local -a what=()
    while [ "$1" != -- ]; do what+=("$1"); shift; done
    shift
    wanted=$(fingerprint "$venv/bin/python" "$@")
    [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && return
    rm -f "$stamp"
    say "installing ${what[*]} into $venv"
    # A recent pip resumes broken downloads; an old one still works, so a failure here is no end.
    "$venv/bin/python" -m pip install --quiet --upgrade pip >/dev/null 2>&1 || true
    "$venv/bin/python" -m pip install --quiet "${what[@]}" ||
        die "pip could not install emberd; its message is above"
    printf '%s\n' "$wanted" >"$stamp"
}

# The environment that scripts/test and scripts/lint share: the checkout itself, editable, with their tools.
make_dev_venv() {
    make_venv .venv-test
    install_checkout .venv-test -e '.[test,lint]' -- pyproject.toml src/emberd/__init__.py
}
