"""The command line of the TorchServe frontend.

Java is started directly, not through ``torchserve --start``: that launcher keeps one pid file a host,
lets TS_CONFIG_FILE override the configuration and splits JVM options at blanks. A contract test compares
this command line with the launcher's own.
"""

from __future__ import annotations

from dataclasses import dataclass

from servekit.domain.deployment import Paths
from servekit.domain.plan import Argv

MAIN_CLASS = "org.pytorch.serve.ModelServer"


@dataclass(frozen=True)
class Runtime:
    """Where the server's programs are, as the server sees them: ``site`` is the folder that holds ``ts/``."""

    java: str
    java_major: int
    python: str
    site: str


def server_argv(runtime: Runtime, paths: Paths) -> Argv:
    """The argv of the frontend. ``-Dservekit.home`` is the label by which its process is found again."""
    return (
        runtime.java,
        *quiet_options(runtime.java_major),
        "-XX:+ExitOnOutOfMemoryError",
        "-Dfile.encoding=UTF-8",
        f"-Dservekit.home={paths.home}",
        f"-Dmodel_server_home={runtime.site}",
        f"-Dlog4j.configurationFile={paths.home.as_uri()}/log4j2.xml",
        f"-Djava.io.tmpdir={paths.scratch}",
        "-cp",
        f"{runtime.site}/ts/frontend/*",
        MAIN_CLASS,
        "--python",
        runtime.python,
        "-f",
        f"{paths.home}/config.properties",
        "-s",
        f"{paths.home}/models",
        "-ncs",
    )


def quiet_options(java_major: int) -> Argv:
    """Allow what TorchServe's netty 4.1.53 does and newer Javas warn about: JNI and sun.misc.Unsafe."""
    options: Argv = ()
    if java_major >= 22:
        options += ("--enable-native-access=ALL-UNNAMED",)
    if java_major >= 24:
        options += ("--sun-misc-unsafe-memory-access=allow",)
    return options
