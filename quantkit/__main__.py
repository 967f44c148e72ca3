"""The command, as `python -m quantkit`."""

from quantkit.cli.main import main

if __name__ == "__main__":
    main()
