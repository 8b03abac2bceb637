package environments

// GetWeatherParameters is the schema of the weather tool.
var GetWeatherParameters = getWeatherParameters

// OpenWorkplaceOf opens the workplace environment of another office.
var OpenWorkplaceOf = openWorkplaceOf
