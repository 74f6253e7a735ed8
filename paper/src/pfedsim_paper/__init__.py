"""Every table, figure and claim of the paper as a study: cells that are run once and kept, and a report
made from what is kept."""
