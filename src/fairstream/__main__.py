"""Run the command line as `python -m fairstream`, where its script is not on the path."""

from fairstream.cli import main

if __name__ == "__main__":
    main()
