"""``python -m servekit`` and the ``servekit`` script."""

from servekit.cli.main import main

if __name__ == "__main__":
    main()
