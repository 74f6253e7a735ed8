"""The command line: thin skins that parse, call and print."""
