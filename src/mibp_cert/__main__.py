"""`python -m mibp_cert` is the command line."""

from mibp_cert.cli import main

if __name__ == "__main__":
    main()
