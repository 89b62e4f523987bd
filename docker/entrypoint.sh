#!/bin/sh
# Runs the server as given. `exec` makes it the process that receives SIGTERM from `docker stop`.
set -eu

if [ "$#" -eq 0 ]; then
    echo "This image holds TorchServe for servekit, without models: servekit up --runtime docker" >&2
    exit 64
fi

# What the server writes, its access keys above all, is for its own user only.
umask 077
exec "$@"
