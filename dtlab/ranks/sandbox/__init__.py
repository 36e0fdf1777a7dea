"""The sandbox: runs untrusted code in processes with limited files, resources and network."""
