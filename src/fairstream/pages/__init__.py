"""HTML pages: markup, tables, charts, styles, number formatting."""
