module measured

go 1.22
