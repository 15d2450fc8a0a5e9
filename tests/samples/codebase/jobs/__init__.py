"""The shop's own package of this name; an installation of ours must leave it alone."""
