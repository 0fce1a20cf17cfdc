"""The project that `fdl init` makes: templates, and writing them whole or not at all."""
