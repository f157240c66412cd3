"""Questions answered by searching, by the protocol of Search-R1."""
