"""`python -m emberd`: the same as the `emberd` command."""

from .cli import main

if __name__ == "__main__":
    main()
