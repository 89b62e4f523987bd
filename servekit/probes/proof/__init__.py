"""The proof, run in a child process that sees an archive's files, site-packages and nothing else of ours.

``python servekit/probes/proof`` with cwd = a folder laid out like the archive reads a request as JSON on
stdin, tells its progress in lines that begin with ``PROGRESS``, and writes the result as JSON to the file that
the request names. ``run.py`` has both forms.
"""

PROGRESS = "servekit-proof: "
