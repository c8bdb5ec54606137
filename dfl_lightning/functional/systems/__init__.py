"""The formulas of AFIND+, PANM, FL-FDMS and DPFL."""
