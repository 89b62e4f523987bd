# What the image is built from when no registry can be asked: a Debian of our own and a folder of wheels.

torch_spec() { grep '^torch==' constraints.txt; }

# Prints the tag of a minimal Debian with Python, of the same release as this machine.
base_image() {
    local suite tag tree
    suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
    tag=servekit-ci-base:$suite
    if ! docker image inspect "$tag" >/dev/null 2>&1; then
        if [ ! -f "$cache/base-$suite.tar" ]; then
            tree=$(mktemp -d "$cache/base.XXXXXX")
            debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates "$suite" "$tree" >&2
            rm -rf "$tree"/var/cache/apt/archives/*.deb "$tree"/var/lib/apt/lists/*
            tar -C "$tree" -cf "$cache/base.part" .
            rm -rf "$tree"
            mv "$cache/base.part" "$cache/base-$suite.tar"
        fi
        docker import "$cache/base-$suite.tar" "$tag" >/dev/null
    fi
    echo "$tag"
}

# Prints a folder with the wheels of torch and docker/requirements.txt, for Debian's own Python.
wheelhouse() {
    local python key folder
    python=$(/usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    key=$({ cat docker/requirements.txt; torch_spec; echo "$python ${TORCH_INDEX:-}"; } | sha256sum | cut -c1-12)
    folder=$cache/wheelhouse-$key
    if [ ! -d "$folder" ]; then
        rm -rf "$cache/pip" "$folder.part"
        /usr/bin/python3 -m venv "$cache/pip"
        "$cache/pip/bin/python" -m pip download -q --only-binary :all: --dest "$folder.part" \
            ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$(torch_spec)" >&2
        "$cache/pip/bin/python" -m pip download -q --only-binary :all: --dest "$folder.part" \
            -r docker/requirements.txt >&2
        mv "$folder.part" "$folder"
    fi
    echo "$folder"
}
