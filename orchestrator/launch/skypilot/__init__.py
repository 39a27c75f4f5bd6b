"""SkyPilot: a task for each cell, as SkyPilot's managed jobs take it.

    tasks    the options of a cloud, and the YAML of a cell's task
    worker   the program of such a task, on the machine that SkyPilot made

orch writes the tasks and does not launch them: `sky jobs launch` does. Seen here: SkyPilot's own
parser takes them, and the worker trains what they say. No task was ever launched on a cloud.
"""
