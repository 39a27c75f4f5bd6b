"""What `kl` means in each library and version: measured in the library's own code."""
