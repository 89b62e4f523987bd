# A Docker engine: the one that answers, or one that we start here and end with the run.

engine_pid=

start_engine() {
    if docker version >/dev/null 2>&1; then
        echo "An engine answers already." >&2
        return
    fi
    dockerd >"$cache/dockerd.log" 2>&1 &
    engine_pid=$!
    local _
    for _ in {1..120}; do
        if docker version >/dev/null 2>&1; then
            echo "The engine answers." >&2
            return
        fi
        # Installing docker.io may have started one, too: then ours ends and that one answers soon.
        sleep 0.5
    done
    echo "dockerd did not start. The end of $cache/dockerd.log:" >&2
    tail -n 30 "$cache/dockerd.log" >&2
    return 1
}

stop_engine() {
    if [ -n "$engine_pid" ]; then
        kill "$engine_pid" 2>/dev/null || true
        wait "$engine_pid" 2>/dev/null || true
    fi
}
