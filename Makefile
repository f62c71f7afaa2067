# Thin: everything is in ./dev, which needs no make.
.PHONY: setup test lint format demo clean

setup test lint format demo clean:
	@./dev $@
