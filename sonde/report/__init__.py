"""From a Reading to a picture, a page, a terminal table."""
