module load

go 1.22

require measured v0.0.0

replace measured => ../measured
