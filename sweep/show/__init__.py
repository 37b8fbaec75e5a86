"""What is printed and drawn: tables, screens, progress, timelines, and the terminal itself."""
