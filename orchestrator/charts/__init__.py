"""Charts: Vega-Lite specifications as plain data, and PNG, PDF and SVG of them.

A figure is a list of views. A view is a specification without rows, widths or colours: colours are
names of a theme (`$text`), and rows come from a table. The report's page completes a view in the
browser, `files.py` completes the same view for a file, and vl-convert draws it without a browser.
"""
