# What a bare Debian lacks.

install_packages() {
    local missing=()
    command -v make >/dev/null || missing+=(make)
    command -v git >/dev/null || missing+=(git)
    command -v dockerd >/dev/null || missing+=(docker.io)
    command -v debootstrap >/dev/null || missing+=(debootstrap)
    # Debian's own Python: the image has the same one, so that wheels for this one suit it.
    /usr/bin/python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
    if [ "${#missing[@]}" -gt 0 ]; then
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -q
        apt-get install -q -y --no-install-recommends ca-certificates "${missing[@]}"
    fi
}
