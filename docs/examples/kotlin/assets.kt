/** A stand-in: the files of a folder. */
package android.content.res

import java.io.File
import java.io.InputStream

class AssetManager(private val folder: File) {
    fun open(name: String): InputStream = File(folder, name).inputStream()
}
