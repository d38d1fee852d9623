"""`python -m fairstream`: the command line, wherever its script is not on the path."""

from fairstream.cli import main

if __name__ == "__main__":
    main()
