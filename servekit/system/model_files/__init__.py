"""What people bring: weights in every format, told apart, scanned and described without running any of it."""
