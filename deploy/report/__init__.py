"""Reports: one page with figures and tables, of a run or of several."""
