.PHONY: run test setup bench

run test setup:
	python3 bootstrap.py $@

bench:
	.venv/bin/python benchmarks/table.py --write benchmarks/RESULTS.md
