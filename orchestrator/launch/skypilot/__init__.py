"""SkyPilot: a task for each cell, in the form of SkyPilot's managed jobs.

tasks the options of a cloud, and the YAML of a cell's task worker the program of such a task, on
the machine that SkyPilot started

orch writes the tasks and does not launch them: use `sky jobs launch`. Tested: SkyPilot's own parser
accepts the tasks, and the worker trains their cells. No task was ever launched on a cloud.
"""
