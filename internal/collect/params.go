package collect

import "example.com/turn/internal/rawjson"

// A Param replaces one field of responses_create_params in every row.
type Param struct {
	Name  string
	Value []byte // JSON
}

// setParams replaces fields of responses_create_params.
func setParams(params []byte, replaced []Param) ([]byte, error) {
	fields, err := rawjson.ParseObject(params)
	if err != nil {
		return nil, err
	}
	var w rawjson.ObjectWriter
	for _, field := range fields {
		if !isReplaced(field.Name, replaced) {
			w.Member(field)
		}
	}
	for i, param := range replaced {
		if !isReplaced(param.Name, replaced[i+1:]) { // the last of a name counts
			w.Value(param.Name, param.Value)
		}
	}
	return w.End().Bytes(), nil
}

func isReplaced(name string, replaced []Param) bool {
	for _, param := range replaced {
		if param.Name == name {
			return true
		}
	}
	return false
}
