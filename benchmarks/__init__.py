"""How fast it is: `make bench` runs everything here and prints the tables of RESULTS.md."""
