"""Who waits for whom: operations of all ranks compared, deadlocks found and explained."""
