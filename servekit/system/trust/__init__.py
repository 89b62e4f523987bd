"""Keys and signatures; locked requirements, their wheels and their bill of materials."""
