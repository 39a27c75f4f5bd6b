.PHONY: run test setup

run test setup:
	python3 bootstrap.py $@
