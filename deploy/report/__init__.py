"""Reports: one page with figures and tables about one run or several."""
