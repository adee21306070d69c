"""Files of office programs: by a converter, and what it drops or does not read."""
