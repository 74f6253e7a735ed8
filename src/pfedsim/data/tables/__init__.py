"""Raw tables: cells, files, what is wrong with them, and the recipe that turns them into numbers."""
