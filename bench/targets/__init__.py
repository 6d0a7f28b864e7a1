"""What is measured: each target stands between the clients and the stub, one file for each kind of program."""
